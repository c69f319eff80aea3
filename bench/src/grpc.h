// As much of a gRPC server as the engine needs, on nghttp2: unary and server-streaming calls, one thread.
//
// A request is HEADERS with the :path and DATA with one message; an answer is HEADERS, DATA with messages, and trailers with grpc-status.
// A message on the wire has five bytes in front: whether it is compressed (never here), and its length, big-endian.
#pragma once
#include "common.h"

struct call {
  struct connection *connection;
  struct call *next, *previous;  // of the same connection
  void *job;                     // the engine's own, NULL when it has none
  int32_t stream;
  char path[96];
  struct buffer request;  // with the five bytes
  struct buffer out;      // framed messages; nghttp2 has taken `taken` bytes of it
  size_t taken;
  bool finished;  // nothing more will be added to `out`
  bool idle;      // nghttp2 has asked for data and there was none
};

struct server {
  int epoll;
  void (*on_call)(struct call *call);  // the request is complete
  void (*on_gone)(struct call *call);  // the stream is closed, at its end or before; the call is freed afterwards
  struct connection *touched;          // have something to send
  struct connection *dead;             // are freed by server_flush
};

void server_accept(struct server *server, int listener);
void server_event(struct server *server, void *tag, uint32_t events);
void server_flush(struct server *server);  // one send per connection that has something to say

void call_add(struct call *call, const struct buffer *message);
void call_open(struct call *call);                                // sends the head of an answer
void call_wake(struct call *call);                                // `out` or `finished` has changed
void call_reply(struct call *call, const struct buffer *message);  // a whole unary answer
void call_refuse(struct call *call, const char *status, const char *why);
