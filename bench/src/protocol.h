// The two engine protocols: the same messages with other field numbers (those of proto/sglang_scheduler.proto and proto/vllm_engine.proto).
#pragma once
#include "common.h"

struct facts {  // what the engine says of itself
  const char *model_path, *served_name;
  long context, vocabulary, stop_token, active;
};

struct request {  // what is read of a GenerateRequest
  char id[128];
  long prompt_tokens, max_tokens, choices;  // max_tokens -1: not given
  bool stream;
};

struct progress {  // tokens [from, to) of one choice
  const uint32_t *ids;
  size_t known;  // ids repeat after so many
  long from, to, choice;
};

struct protocol {
  const char *name, *service;
  int stream, count_of_choices;          // in GenerateRequest and in its SamplingParams
  int request_id, chunk, complete;       // in GenerateResponse; 0: not there
  int chunk_index, complete_index, matched;
  bool complete_counts_delta;            // completion_tokens of a stream's closing message counts only what it repeats
  void (*model_info)(struct buffer *out, const struct facts *facts);
  void (*server_info)(struct buffer *out, const struct facts *facts);
  void (*aborted)(struct buffer *out, bool found);
};

const struct protocol *find_protocol(const char *name);  // NULL: unknown
bool read_request(const struct protocol *protocol, const struct buffer *body, struct request *request);
bool read_id(const char *data, size_t size, char *id, size_t room);  // field 1, a string: what Abort names
void write_chunk(const struct protocol *protocol, struct buffer *out, const struct request *request, const struct progress *progress);
// `matched`: the token that ended the choice, -1 when its length did.
void write_complete(const struct protocol *protocol, struct buffer *out, const struct request *request, const struct progress *progress,
                    long matched);
void write_health(struct buffer *out);
void write_loads(struct buffer *out, const struct facts *facts);
