#include "grpc.h"

#include <arpa/inet.h>
#include <errno.h>
#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SEND_SIZE = 256 << 10, READ_SIZE = 256 << 10 };

struct connection {
  struct server *server;
  struct connection *next_touched, *next_dead;
  struct call *calls;
  nghttp2_session *session;
  struct buffer out;
  size_t sent;
  int fd;
  bool touched, dead, blocked;
};

static void touch(struct connection *connection) {
  if (connection->touched) return;
  connection->touched = true;
  connection->next_touched = connection->server->touched;
  connection->server->touched = connection;
}

// ---- calls

static void free_call(struct call *call) {
  if (call->previous) call->previous->next = call->next;
  else call->connection->calls = call->next;
  if (call->next) call->next->previous = call->previous;
  call->connection->server->on_gone(call);
  buffer_free(&call->request);
  buffer_free(&call->out);
  free(call);
}

static nghttp2_nv header(const char *name, const char *value) {
  return (nghttp2_nv){(uint8_t *)name, (uint8_t *)value, strlen(name), strlen(value), NGHTTP2_NV_FLAG_NONE};
}

void call_add(struct call *call, const struct buffer *message) {
  char head[5] = {0};
  uint32_t size = htonl(message->size);
  if (call->taken > READ_SIZE) {
    buffer_drop(&call->out, call->taken);
    call->taken = 0;
  }
  memcpy(head + 1, &size, 4);
  buffer_add(&call->out, head, sizeof head);
  buffer_add(&call->out, message->data, message->size);
}

// nghttp2 asks for the payload of DATA frames here. NO_END_STREAM leaves the end of the stream to the trailers.
static ssize_t give_data(nghttp2_session *session, int32_t stream, uint8_t *target, size_t room, uint32_t *flags,
                         nghttp2_data_source *source, void *user) {
  (void)user;
  struct call *call = source->ptr;
  size_t size = call->out.size - call->taken;
  if (!size && !call->finished) {
    call->idle = true;
    return NGHTTP2_ERR_DEFERRED;
  }
  if (size > room) size = room;
  if (size) memcpy(target, call->out.data + call->taken, size);
  call->taken += size;
  if (call->taken < call->out.size) return size;
  buffer_reset(&call->out);
  call->taken = 0;
  if (call->finished) {
    *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
    nghttp2_nv trailer = header("grpc-status", "0");
    nghttp2_submit_trailer(session, stream, &trailer, 1);
  }
  return size;
}

void call_open(struct call *call) {
  nghttp2_nv head[] = {header(":status", "200"), header("content-type", "application/grpc")};
  nghttp2_data_provider provider = {.source.ptr = call, .read_callback = give_data};
  nghttp2_submit_response(call->connection->session, call->stream, head, 2, &provider);
  touch(call->connection);
}

void call_wake(struct call *call) {
  if (call->idle) nghttp2_session_resume_data(call->connection->session, call->stream);
  call->idle = false;
  touch(call->connection);
}

void call_reply(struct call *call, const struct buffer *message) {
  call_add(call, message);
  call->finished = true;
  call_open(call);
}

void call_refuse(struct call *call, const char *status, const char *why) {
  nghttp2_nv head[] = {header(":status", "200"), header("content-type", "application/grpc"), header("grpc-status", status),
                       header("grpc-message", why)};
  nghttp2_submit_response(call->connection->session, call->stream, head, 4, NULL);
  touch(call->connection);
}

// ---- what nghttp2 tells

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
  struct connection *connection = user;
  if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
  struct call *call = must_allocate(sizeof *call);
  call->connection = connection;
  call->stream = frame->hd.stream_id;
  call->next = connection->calls;
  if (call->next) call->next->previous = call;
  connection->calls = call;
  nghttp2_session_set_stream_user_data(session, call->stream, call);
  return 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_size, const uint8_t *value,
                     size_t size, uint8_t flags, void *user) {
  (void)flags, (void)user;
  struct call *call = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
  if (call && name_size == 5 && !memcmp(name, ":path", 5) && size < sizeof call->path) memcpy(call->path, value, size);
  return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *data, size_t size, void *user) {
  (void)flags, (void)user;
  struct call *call = nghttp2_session_get_stream_user_data(session, stream);
  if (call) buffer_add(&call->request, data, size);
  return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
  struct connection *connection = user;
  bool carries_end = frame->hd.type == NGHTTP2_DATA || frame->hd.type == NGHTTP2_HEADERS;
  if (!carries_end || !(frame->hd.flags & NGHTTP2_FLAG_END_STREAM)) return 0;
  struct call *call = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
  if (call) connection->server->on_call(call);
  return 0;
}

static int on_close(nghttp2_session *session, int32_t stream, uint32_t error, void *user) {
  (void)error, (void)user;
  struct call *call = nghttp2_session_get_stream_user_data(session, stream);
  if (!call) return 0;
  nghttp2_session_set_stream_user_data(session, stream, NULL);
  free_call(call);
  return 0;
}

// ---- connections

static nghttp2_session *new_session(struct connection *connection) {
  static nghttp2_session_callbacks *callbacks;
  if (!callbacks) {
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
  }
  // Clients that leave reset streams; by default nghttp2 takes more than 33 a second for an attack and ends the connection.
  static nghttp2_option *option;
  if (!option) {
    nghttp2_option_new(&option);
    nghttp2_option_set_stream_reset_rate_limit(option, 1 << 20, 1 << 20);
  }
  nghttp2_session *session;
  nghttp2_session_server_new2(&session, callbacks, connection, option);
  // Windows so wide that no prompt waits for a WINDOW_UPDATE: the engine is not what is measured.
  nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 100000},
                                       {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 16 << 20},
                                       {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, 1 << 20}};
  nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, settings, 3);
  nghttp2_session_set_local_window_size(session, NGHTTP2_FLAG_NONE, 0, 64 << 20);
  return session;
}

void server_accept(struct server *server, int listener) {
  for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
    set_nodelay(fd);  // has no effect on a UNIX socket
    struct connection *connection = must_allocate(sizeof *connection);
    connection->server = server;
    connection->fd = fd;
    connection->session = new_session(connection);
    watch(server->epoll, EPOLL_CTL_ADD, fd, EPOLLIN, connection);
    touch(connection);
  }
}

static void shut(struct connection *connection) {
  if (connection->dead) return;
  connection->dead = true;
  connection->next_dead = connection->server->dead;
  connection->server->dead = connection;
  while (connection->calls) free_call(connection->calls);
  close(connection->fd);  // leaves the epoll set with it
}

void server_event(struct server *server, void *tag, uint32_t events) {
  (void)server;
  static uint8_t bytes[READ_SIZE];
  struct connection *connection = tag;
  while (!connection->dead && events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
    ssize_t size = recv(connection->fd, bytes, sizeof bytes, 0);
    if (size < 0 && errno == EAGAIN) break;
    if (size <= 0 || nghttp2_session_mem_recv(connection->session, bytes, size) < 0) return shut(connection);
    if (size < READ_SIZE) break;
  }
  touch(connection);
}

static void send_pending(struct connection *connection) {
  for (;;) {
    const uint8_t *data;
    ssize_t size = 1;
    while (connection->out.size - connection->sent < SEND_SIZE && (size = nghttp2_session_mem_send(connection->session, &data)) > 0)
      buffer_add(&connection->out, data, size);
    if (size < 0) return shut(connection);
    size_t left = connection->out.size - connection->sent;
    if (!left) break;
    ssize_t sent = send(connection->fd, connection->out.data + connection->sent, left, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) return shut(connection);
    if (sent < 0) {
      if (!connection->blocked) watch(connection->server->epoll, EPOLL_CTL_MOD, connection->fd, EPOLLIN | EPOLLOUT, connection);
      connection->blocked = true;
      return;
    }
    connection->sent += sent;
    if (connection->sent > SEND_SIZE) {
      buffer_drop(&connection->out, connection->sent);
      connection->sent = 0;
    }
  }
  buffer_reset(&connection->out);
  connection->sent = 0;
  if (connection->blocked) watch(connection->server->epoll, EPOLL_CTL_MOD, connection->fd, EPOLLIN, connection);
  connection->blocked = false;
  if (!nghttp2_session_want_read(connection->session) && !nghttp2_session_want_write(connection->session)) shut(connection);
}

void server_flush(struct server *server) {
  struct connection *connection = server->touched;
  server->touched = NULL;
  while (connection) {
    struct connection *next = connection->next_touched;
    connection->touched = false;
    if (!connection->dead) send_pending(connection);
    connection = next;
  }
  // Freed only here, where neither a batch of epoll events nor the list above can name them.
  while ((connection = server->dead)) {
    server->dead = connection->next_dead;
    nghttp2_session_del(connection->session);
    buffer_free(&connection->out);
    free(connection);
  }
}
