// Reads one HTTP/1.1 response as its bytes come, and counts the server-sent events in its body.
#pragma once
#include "common.h"

struct response {
  struct buffer head;     // until the empty line, then lower-cased
  struct buffer opening;  // of the body: until the first token, or of an error
  enum { HEAD, PLAIN, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, COMPLETE, MALFORMED } state;
  int status;
  long left;  // of the body or the chunk; -1: the body ends with the connection
  bool keep_alive, first_token, line_ended, trailer_line;
  long events, bytes;
  double first_token_s, last_s;
  char tail[16];  // the last bytes of the body
  size_t tail_size;
};

void response_reset(struct response *response);
// Gives how many bytes belong to this response. `now_s` is the time at which they came.
size_t response_feed(struct response *response, const char *data, size_t size, double now_s);
bool response_at_eof(struct response *response);  // true: the connection's end completes it
bool response_is_done(const struct response *response);  // a stream has said [DONE]
