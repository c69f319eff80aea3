#include "common.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

void fail(const char *format, ...) {
  va_list values;
  va_start(values, format);
  vfprintf(stderr, format, values);
  va_end(values);
  fputc('\n', stderr);
  exit(2);
}

void *must_allocate(size_t size) {
  void *memory = calloc(1, size);
  if (!memory) fail("out of memory");
  return memory;
}

static void reserve(struct buffer *buffer, size_t more) {
  size_t wanted = buffer->size + more;
  if (wanted <= buffer->capacity) return;
  if (wanted < buffer->capacity * 2) wanted = buffer->capacity * 2;
  buffer->data = realloc(buffer->data, wanted);
  if (!buffer->data) fail("out of memory");
  buffer->capacity = wanted;
}

void buffer_add(struct buffer *buffer, const void *data, size_t size) {
  reserve(buffer, size);
  if (size) memcpy(buffer->data + buffer->size, data, size);
  buffer->size += size;
}

void buffer_print(struct buffer *buffer, const char *format, ...) {
  va_list values, again;
  va_start(values, format);
  va_copy(again, values);
  int size = vsnprintf(NULL, 0, format, values);
  reserve(buffer, size + 1);  // vsnprintf ends with a zero byte
  vsnprintf(buffer->data + buffer->size, size + 1, format, again);
  buffer->size += size;
  va_end(values);
  va_end(again);
}

void buffer_reset(struct buffer *buffer) { buffer->size = 0; }

void buffer_drop(struct buffer *buffer, size_t size) {
  buffer->size -= size;
  memmove(buffer->data, buffer->data + size, buffer->size);
}

void buffer_free(struct buffer *buffer) {
  free(buffer->data);
  *buffer = (struct buffer){0};
}

double seconds(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return time.tv_sec + time.tv_nsec / 1e9;
}

static void set_flag(const struct flag *flag, const char *value) {
  char *end = "";
  if (flag->kind == TEXT) *(const char **)flag->target = value;
  if (flag->kind == NUMBER) *(long *)flag->target = strtol(value, &end, 10);
  if (flag->kind == FRACTION) *(double *)flag->target = strtod(value, &end);
  if (*end) fail("%s: %s is no number", flag->name, value);
}

void parse_flags(int count, char **arguments, const struct flag *flags, size_t known) {
  for (int i = 1; i < count; i++) {
    const struct flag *found = NULL;
    for (size_t k = 0; k < known; k++)
      if (!strcmp(arguments[i], flags[k].name)) found = &flags[k];
    if (!found) fail("unknown flag %s", arguments[i]);
    if (found->kind == SWITCH) {
      *(bool *)found->target = true;
    } else {
      if (i + 1 == count) fail("%s needs a value", arguments[i]);
      set_flag(found, arguments[++i]);
    }
  }
}

void watch(int epoll, int operation, int fd, uint32_t events, void *tag) {
  struct epoll_event event = {.events = events, .data.ptr = tag};
  if (epoll_ctl(epoll, operation, fd, &event)) fail("epoll_ctl: %s", strerror(errno));
}

static int loopback(int type, int port, int *bound) {
  int fd = socket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  if (type == SOCK_STREAM) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(fd, (struct sockaddr *)&address, size)) fail("port %d: %s", port, strerror(errno));
  getsockname(fd, (struct sockaddr *)&address, &size);
  *bound = ntohs(address.sin_port);
  return fd;
}

int listen_tcp(int port, int *bound) {
  int fd = loopback(SOCK_STREAM, port, bound);
  if (listen(fd, 1024)) fail("listen: %s", strerror(errno));
  return fd;
}

int open_control(int *bound) { return loopback(SOCK_DGRAM, 0, bound); }

int listen_unix(const char *path) {
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) fail("%s is too long for a socket", path);
  strcpy(address.sun_path, path);
  unlink(path);
  if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 1024)) fail("%s: %s", path, strerror(errno));
  return fd;
}

void set_nodelay(int fd) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}
