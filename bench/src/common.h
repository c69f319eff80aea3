// What both programs share: growing buffers, clocks, the command line, epoll and loopback sockets.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct buffer {
  char *data;
  size_t size, capacity;
};

void buffer_add(struct buffer *buffer, const void *data, size_t size);
void buffer_print(struct buffer *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));
void buffer_reset(struct buffer *buffer);  // empties it and keeps its memory
void buffer_drop(struct buffer *buffer, size_t size);  // takes bytes from its beginning
void buffer_free(struct buffer *buffer);
void *must_allocate(size_t size);  // zeroed

double seconds(clockid_t clock);  // CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

// One flag of a command line. `kind` says what `target` is: a const char *, long, double or bool.
struct flag {
  const char *name;
  enum { TEXT, NUMBER, FRACTION, SWITCH } kind;
  void *target;
};
void parse_flags(int count, char **arguments, const struct flag *flags, size_t known);

void watch(int epoll, int operation, int fd, uint32_t events, void *tag);
int listen_tcp(int port, int *bound);  // loopback; port 0 takes a free one
int listen_unix(const char *path);
int open_control(int *bound);  // a UDP socket on a free loopback port
void set_nodelay(int fd);
