#include "response.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_MAX = 64 << 10, OPENING_MAX = 16 << 10 };

void response_reset(struct response *response) {
  struct buffer head = response->head, opening = response->opening;
  head.size = opening.size = 0;
  *response = (struct response){.head = head, .opening = opening};
}

bool response_at_eof(struct response *response) {
  if (response->state == PLAIN && response->left < 0) response->state = COMPLETE;
  response->keep_alive = false;
  return response->state == COMPLETE;
}

bool response_is_done(const struct response *response) { return memmem(response->tail, response->tail_size, "[DONE]", 6); }

// A delta has text when something other than the closing quote follows the key.
static bool has_text(const struct buffer *opening) {
  static const char *keys[] = {"\"content\":\"", "\"content\": \"", "\"text\":\""};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    size_t length = strlen(keys[i]);
    const char *at = opening->data, *end = at + opening->size;
    while ((at = memmem(at, end - at, keys[i], length))) {
      at += length;
      if (at < end && *at != '"') return true;
    }
  }
  return false;
}

static void count_events(struct response *response, const char *data, const char *end) {  // an event ends with an empty line
  while (data < end) {
    if (response->line_ended && (*data == '\n' || *data == '\r')) {
      if (*data++ == '\r') continue;
      response->events++;
      response->line_ended = false;
      continue;
    }
    const char *newline = memchr(data, '\n', end - data);
    response->line_ended = newline;
    data = newline ? newline + 1 : end;
  }
}

static void keep_tail(struct response *response, const char *data, size_t size) {
  size_t room = sizeof response->tail;
  if (size >= room) {
    memcpy(response->tail, data + size - room, room);
    response->tail_size = room;
    return;
  }
  size_t kept = response->tail_size + size > room ? room - size : response->tail_size;
  memmove(response->tail, response->tail + response->tail_size - kept, kept);
  memcpy(response->tail + kept, data, size);
  response->tail_size = kept + size;
}

static void take_body(struct response *response, const char *data, size_t size, double now_s) {
  response->bytes += size;
  response->last_s = now_s;
  if (!response->first_token && response->opening.size < OPENING_MAX) {
    buffer_add(&response->opening, data, size);
    response->first_token = response->status == 200 && has_text(&response->opening);
    response->first_token_s = now_s;
  }
  count_events(response, data, data + size);
  keep_tail(response, data, size);
}

static size_t take_head(struct response *response, const char *data, size_t size) {
  struct buffer *head = &response->head;
  size_t before = head->size, from = before > 3 ? before - 3 : 0;
  buffer_add(head, data, size);
  const char *blank = memmem(head->data + from, head->size - from, "\r\n\r\n", 4);
  if (!blank) {
    if (head->size > HEAD_MAX) response->state = MALFORMED;
    return size;
  }
  size_t used = blank + 4 - head->data - before;
  head->size = blank + 2 - head->data;
  buffer_add(head, "", 1);
  for (char *c = head->data; *c; c++) *c = tolower(*c);
  const char *length = strstr(head->data, "\r\ncontent-length:"), *status = strchr(head->data, ' ');
  response->status = status ? atoi(status) : 0;
  response->keep_alive = !strstr(head->data, "\r\nconnection: close");
  response->left = length ? atol(length + strlen("\r\ncontent-length:")) : -1;
  response->state = strstr(head->data, "\r\ntransfer-encoding: chunked") ? CHUNK_SIZE : PLAIN;
  if (response->state == CHUNK_SIZE) response->left = 0;
  if (response->state == PLAIN && !response->left) response->state = COMPLETE;
  return used;
}

static size_t take_plain(struct response *response, const char *data, size_t size, double now_s) {
  size_t taken = response->left >= 0 && size > response->left ? (size_t)response->left : size;
  take_body(response, data, taken, now_s);
  if (response->left >= 0 && !(response->left -= taken)) response->state = COMPLETE;
  return taken;
}

static size_t take_chunk_size(struct response *response, char c) {
  if (isxdigit(c)) response->left = response->left * 16 + (isdigit(c) ? c - '0' : tolower(c) - 'a' + 10);
  else if (c == '\n') response->state = response->left ? CHUNK : TRAILER;
  else if (c != '\r') response->state = MALFORMED;  // extensions are not expected of a gateway
  return 1;
}

static size_t take_trailer(struct response *response, char c) {
  if (c == '\n' && !response->trailer_line) response->state = COMPLETE;
  else if (c == '\n') response->trailer_line = false;
  else if (c != '\r') response->trailer_line = true;
  return 1;
}

static size_t take(struct response *response, const char *data, size_t size, double now_s) {
  size_t taken;
  switch (response->state) {
    case HEAD: return take_head(response, data, size);
    case PLAIN: return take_plain(response, data, size, now_s);
    case CHUNK_SIZE: return take_chunk_size(response, *data);
    case TRAILER: return take_trailer(response, *data);
    case CHUNK:
      taken = size < response->left ? size : (size_t)response->left;
      take_body(response, data, taken, now_s);
      if (!(response->left -= taken)) response->state = CHUNK_END;
      return taken;
    case CHUNK_END:
      if (*data == '\n') response->state = CHUNK_SIZE;
      return 1;
    default: return size;
  }
}

size_t response_feed(struct response *response, const char *data, size_t size, double now_s) {
  size_t used = 0;
  while (used < size && response->state != COMPLETE && response->state != MALFORMED)
    used += take(response, data + used, size - used, now_s);
  return used;
}
