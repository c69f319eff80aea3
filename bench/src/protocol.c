#include "protocol.h"

#include <string.h>

// ---- protobuf: a field is its number and kind, then a varint, or a length and so many bytes

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_varint(struct buffer *out, uint64_t value) {
  uint8_t bytes[10];
  int size = 0;
  for (; value > 127; value >>= 7) bytes[size++] = value | 128;
  bytes[size++] = value;
  buffer_add(out, bytes, size);
}

static void put_number(struct buffer *out, int field, uint64_t value) {
  if (!value) return;
  put_varint(out, field << 3 | VARINT);
  put_varint(out, value);
}

static void put_bytes(struct buffer *out, int field, const void *data, size_t size) {
  put_varint(out, field << 3 | BYTES);
  put_varint(out, size);
  buffer_add(out, data, size);
}

static void put_text(struct buffer *out, int field, const char *text) { put_bytes(out, field, text, strlen(text)); }

static void put_ids(struct buffer *out, int field, const struct progress *progress) {
  static struct buffer ids;
  buffer_reset(&ids);
  for (long i = progress->from; i < progress->to; i++) put_varint(&ids, progress->ids[i % progress->known]);
  if (ids.size) put_bytes(out, field, ids.data, ids.size);
}

struct reader {
  const uint8_t *at, *end;
};

struct field {
  uint64_t number, value;  // value: of a VARINT, or the size of BYTES
  int kind;
  const uint8_t *data;
};

static bool get_varint(struct reader *reader, uint64_t *value) {
  *value = 0;
  for (int shift = 0; shift < 64 && reader->at < reader->end; shift += 7) {
    uint8_t byte = *reader->at++;
    *value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return true;
  }
  return false;
}

static bool get_field(struct reader *reader, struct field *field) {  // false: at the end, or malformed
  uint64_t key;
  if (!get_varint(reader, &key)) return false;
  field->number = key >> 3;
  field->kind = key & 7;
  field->data = reader->at;
  if (field->kind == VARINT) return get_varint(reader, &field->value);
  if (field->kind == FIXED64) field->value = 8;
  else if (field->kind == FIXED32) field->value = 4;
  else if (field->kind != BYTES || !get_varint(reader, &field->value)) return false;
  field->data = reader->at;
  if (field->value > (uint64_t)(reader->end - reader->at)) return false;
  reader->at += field->value;
  return true;
}

static struct reader reader_of(const void *data, size_t size) {
  return (struct reader){.at = data, .end = (const uint8_t *)data + size};
}

// ---- requests; both protocols have the id at 1, the tokenized input at 2 and the sampling parameters at 4

static void copy_id(const struct field *field, char *id, size_t room) {
  size_t size = field->value < room - 1 ? field->value : room - 1;
  memcpy(id, field->data, size);
  id[size] = 0;
}

static long count_ids(const struct field *tokenized) {
  struct reader reader = reader_of(tokenized->data, tokenized->value);
  struct field field;
  long count = 0;
  while (get_field(&reader, &field)) {
    if (field.number != 2) continue;
    if (field.kind == VARINT) count++;
    if (field.kind == BYTES)
      for (uint64_t i = 0; i < field.value; i++) count += field.data[i] < 128;  // the last byte of a varint
  }
  return count;
}

bool read_request(const struct protocol *protocol, const struct buffer *body, struct request *request) {
  struct reader reader = reader_of(body->data, body->size);
  struct field field;
  *request = (struct request){.max_tokens = -1, .choices = 1};
  while (get_field(&reader, &field)) {
    if (field.number == 1 && field.kind == BYTES) copy_id(&field, request->id, sizeof request->id);
    if (field.number == 2 && field.kind == BYTES) request->prompt_tokens = count_ids(&field);
    if ((int)field.number == protocol->stream && field.kind == VARINT) request->stream = field.value;
    if (field.number != 4 || field.kind != BYTES) continue;
    struct reader inner = reader_of(field.data, field.value);
    struct field parameter;
    while (get_field(&inner, &parameter)) {
      if (parameter.number == 8 && parameter.kind == VARINT) request->max_tokens = parameter.value;
      if ((int)parameter.number == protocol->count_of_choices && parameter.value) request->choices = parameter.value;
    }
  }
  return reader.at == reader.end;
}

bool read_id(const char *data, size_t size, char *id, size_t room) {
  struct reader reader = reader_of(data, size);
  struct field field;
  while (get_field(&reader, &field)) {
    if (field.number != 1 || field.kind != BYTES) continue;
    copy_id(&field, id, room);
    return true;
  }
  return false;
}

// ---- answers

static void wrap(const struct protocol *protocol, struct buffer *out, const struct request *request, int field, const struct buffer *body) {
  if (protocol->request_id) put_text(out, protocol->request_id, request->id);
  put_bytes(out, field, body->data, body->size);
}

void write_chunk(const struct protocol *protocol, struct buffer *out, const struct request *request, const struct progress *progress) {
  static struct buffer body;
  buffer_reset(&body);
  put_ids(&body, 1, progress);
  put_number(&body, 2, request->prompt_tokens);
  put_number(&body, 3, progress->to);
  put_number(&body, protocol->chunk_index, progress->choice);
  wrap(protocol, out, request, protocol->chunk, &body);
}

void write_complete(const struct protocol *protocol, struct buffer *out, const struct request *request, const struct progress *progress,
                    long matched) {
  static struct buffer body;
  bool delta = protocol->complete_counts_delta && request->stream;
  buffer_reset(&body);
  put_ids(&body, 1, progress);
  put_text(&body, 2, matched < 0 ? "length" : "stop");
  put_number(&body, 3, request->prompt_tokens);
  put_number(&body, 4, delta ? progress->to - progress->from : progress->to);
  put_number(&body, protocol->complete_index, progress->choice);
  if (matched >= 0) put_number(&body, protocol->matched, matched);
  wrap(protocol, out, request, protocol->complete, &body);
}

void write_health(struct buffer *out) {
  put_number(out, 1, true);
  put_text(out, 2, "healthy");
}

void write_loads(struct buffer *out, const struct facts *facts) {
  static struct buffer load;
  buffer_reset(&load);
  put_number(&load, 2, facts->active);  // running
  put_number(&load, 4, facts->active);  // in all
  put_number(&load, 6, 1000000);        // room for tokens
  put_number(&load, 11, 1024);          // most that may run
  put_text(out, 2, "bench");
  put_number(out, 3, 1);
  put_bytes(out, 4, load.data, load.size);
}

static void sglang_model_info(struct buffer *out, const struct facts *facts) {
  put_text(out, 1, facts->model_path);
  put_text(out, 2, facts->model_path);
  put_number(out, 3, true);
  put_text(out, 6, facts->served_name);
  put_number(out, 7, facts->context);
  put_number(out, 8, facts->vocabulary);
  put_text(out, 10, "bench");
  put_number(out, 11, facts->stop_token);
  put_number(out, 14, facts->context - 1);
  put_text(out, 15, "BenchForCausalLM");
}

static void sglang_server_info(struct buffer *out, const struct facts *facts) {
  put_number(out, 3, facts->active);
  put_text(out, 7, "bench");
  put_text(out, 8, "grpc");
  put_number(out, 10, 1000000);
}

static void sglang_aborted(struct buffer *out, bool found) { put_number(out, 1, found); }

static void vllm_model_info(struct buffer *out, const struct facts *facts) {
  put_text(out, 1, facts->model_path);
  put_number(out, 2, true);
  put_number(out, 3, facts->context);
  put_number(out, 4, facts->vocabulary);
  put_text(out, 6, facts->served_name);
  put_text(out, 7, facts->model_path);
  put_text(out, 8, "bench");
  put_text(out, 9, "BenchForCausalLM");
  put_number(out, 10, facts->stop_token);
  put_number(out, 13, facts->context - 1);
}

static void vllm_server_info(struct buffer *out, const struct facts *facts) {
  put_number(out, 1, facts->active);
  put_text(out, 5, "vllm-grpc");
  put_number(out, 9, 1);     // data-parallel ranks
  put_number(out, 12, 16);   // block size
  put_number(out, 20, 1024);  // most that may run
}

static void vllm_aborted(struct buffer *out, bool found) { (void)out, (void)found; }

static const struct protocol protocols[] = {
    {.name = "sglang",
     .service = "/sglang.grpc.scheduler.SglangScheduler/",
     .stream = 17,
     .count_of_choices = 17,
     .request_id = 1,
     .chunk = 2,
     .complete = 3,
     .chunk_index = 8,
     .complete_index = 11,
     .matched = 8,
     .model_info = sglang_model_info,
     .server_info = sglang_server_info,
     .aborted = sglang_aborted},
    {.name = "vllm",
     .service = "/vllm.grpc.engine.VllmEngine/",
     .stream = 5,
     .count_of_choices = 15,
     .chunk = 1,
     .complete = 2,
     .chunk_index = 7,
     .complete_index = 8,
     .matched = 10,
     .complete_counts_delta = true,
     .model_info = vllm_model_info,
     .server_info = vllm_server_info,
     .aborted = vllm_aborted},
};

const struct protocol *find_protocol(const char *name) {
  for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++)
    if (!strcmp(protocols[i].name, name)) return &protocols[i];
  return NULL;
}
