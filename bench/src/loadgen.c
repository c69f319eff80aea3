// A closed loop of clients on keep-alive connections, one thread: each sends its next chat when its last is answered. Prints one JSON object.
//
// A prompt is made of the lines of --words, frequent ones first: `unique` has its own words for every request, `shared` a long common
// beginning and --suffix-words of its own, `identical` is always the same. --turns spreads the words over a conversation. With --leave N every
// Nth request is left after its first token.
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common.h"
#include "response.h"

enum { READ_SIZE = 256 << 10, BATCH = 256, GIVE_UP_AFTER = 200 };

static struct {
  const char *path, *model, *mode, *words, *extra;
  long port, concurrency, requests, prompt_words, suffix_words, out_tokens, turns, seed, print, leave;
  double duration, timeout;
  bool whole;
} options = {.path = "/v1/chat/completions", .model = "bench", .mode = "unique", .extra = "", .concurrency = 1, .prompt_words = 40,
             .suffix_words = 40, .out_tokens = 16, .turns = 1, .seed = 1, .duration = 3, .timeout = 60};

// ---- prompts

static char **words;
static size_t word_count;
static struct buffer common_text;

static uint64_t next_random(uint64_t *state) {  // xorshift64*
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * 0x2545F4914F6CDD1Dull;
}

static void add_words(struct buffer *text, uint64_t seed, long count) {
  uint64_t state = seed * 0x9E3779B97F4A7C15ull + 1;
  next_random(&state);
  for (long i = 0; i < count; i++) {
    double u = (next_random(&state) >> 11) / 9007199254740992.0;
    const char *word = words[(size_t)(u * u * word_count)];
    buffer_add(text, word, strlen(word));
  }
}

static long messages(void) { return 2 * options.turns - 1; }  // a user's question each turn, and an answer to all but the last

static void add_turns(struct buffer *body, uint64_t seed) {  // all messages but the last
  for (long i = 0; i + 1 < messages(); i++) {
    buffer_print(body, "{\"role\":\"%s\",\"content\":\"", i % 2 ? "assistant" : "user");
    add_words(body, seed * 31 + i, options.prompt_words / messages());
    buffer_print(body, "\"},");
  }
}

static void make_body(struct buffer *body, long number) {
  uint64_t seed = options.seed * 1000003ull + number;
  buffer_print(body, "{\"model\":\"%s\",\"messages\":[{\"role\":\"system\",\"content\":\"You are a helpful assistant.\"},", options.model);
  add_turns(body, seed);
  buffer_print(body, "{\"role\":\"user\",\"content\":\"");
  if (!strcmp(options.mode, "unique")) {
    buffer_print(body, "Request %llu:", (unsigned long long)seed);
    add_words(body, seed, options.prompt_words / messages());
  } else {
    buffer_add(body, common_text.data, common_text.size);
    if (!strcmp(options.mode, "shared")) add_words(body, seed, options.suffix_words);
  }
  buffer_print(body, "\"}],\"max_tokens\":%ld,\"temperature\":0.7%s%s}", options.out_tokens, options.whole ? "" : ",\"stream\":true",
               options.extra);
}

static void read_words(void) {
  FILE *file = fopen(options.words ? options.words : "", "r");
  char line[512];
  size_t room = 0;
  while (file && fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    if (!*line) continue;
    if (word_count == room) words = realloc(words, (room = room ? room * 2 : 1024) * sizeof *words);
    if (!words || !(words[word_count++] = strdup(line))) fail("out of memory");
  }
  if (!word_count) fail("--words names no file of words");
  fclose(file);
}

// ---- results

struct series {
  float *values;
  size_t count, room;
};

static struct series latency, first_token, between_tokens;
static long answered, failed, gone, events, bytes, statuses[600], resets, unfinished, malformed, late;
static double last_done;
static char error_body[200];

static void add_value(struct series *series, double value) {
  if (series->count == series->room) {
    series->room = series->room ? series->room * 2 : 4096;
    series->values = realloc(series->values, series->room * sizeof *series->values);
    if (!series->values) fail("out of memory");
  }
  series->values[series->count++] = value;
}

static int compare(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

static void print_series(const char *name, struct series *series) {
  static const int percents[] = {50, 90, 99};
  qsort(series->values, series->count, sizeof *series->values, compare);
  for (int i = 0; i < 3; i++) {
    size_t at = series->count * percents[i] / 100;
    printf("\"%s_ms_p%d\":%.4f,", name, percents[i], series->count ? series->values[at] * 1e3 : 0);
  }
}

static void print_results(double wall) {
  printf("{\"ok\":%ld,\"failed\":%ld,\"left\":%ld,\"wall_s\":%.4f,\"rps\":%.2f,\"events\":%ld,\"bytes\":%ld,", answered, failed, gone, wall,
         wall > 0 ? answered / wall : 0, events, bytes);
  print_series("latency", &latency);
  print_series("ttft", &first_token);
  print_series("itl", &between_tokens);
  printf("\"cpu_s\":%.6f,\"errors\":{\"reset\":%ld,\"unfinished\":%ld,\"malformed\":%ld,\"late\":%ld", seconds(CLOCK_PROCESS_CPUTIME_ID),
         resets, unfinished, malformed, late);
  for (int status = 0; status < 600; status++)
    if (statuses[status]) printf(",\"status_%d\":%ld", status, statuses[status]);
  printf("},\"error\":\"");
  for (const char *c = error_body; *c; c++)
    if (*c >= ' ') printf(*c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
  printf("\"}\n");
}

// ---- clients

struct client {
  int fd;
  bool busy, leaves;
  double start_s;
  struct buffer out;
  size_t sent;
  struct response response;
};

static int epoll;
static double end_s;
static long issued, busy_clients;

static void issue(struct client *client);

static void disconnect(struct client *client) {
  if (client->fd >= 0) close(client->fd);
  client->fd = -1;
}

static void finish(struct client *client, long *error) {
  struct response *response = &client->response;
  last_done = seconds(CLOCK_MONOTONIC);
  client->busy = false;
  busy_clients--;
  if (error == &gone) {
    gone++;
  } else if (error) {
    failed++;
    ++*error;
    if (!*error_body && response->opening.size) snprintf(error_body, sizeof error_body, "%.*s", (int)response->opening.size, response->opening.data);
  } else {
    answered++;
    bytes += response->bytes;
    add_value(&latency, last_done - client->start_s);
    if (!options.whole) {
      double first_s = response->first_token ? response->first_token_s : response->last_s;
      events += response->events;
      add_value(&first_token, first_s - client->start_s);
      if (response->events > 2) add_value(&between_tokens, (response->last_s - first_s) / (response->events - 2));
    }
  }
  if (error || !response->keep_alive) disconnect(client);
  if (failed <= GIVE_UP_AFTER || answered) issue(client);
}

static void conclude(struct client *client) {
  struct response *response = &client->response;
  if (response->state == MALFORMED) return finish(client, &malformed);
  if (response->status != 200) return finish(client, &statuses[response->status >= 0 && response->status < 600 ? response->status : 0]);
  if (!options.whole && !response_is_done(response)) return finish(client, &unfinished);
  finish(client, NULL);
}

static void send_request(struct client *client) {
  while (client->sent < client->out.size) {
    ssize_t size = send(client->fd, client->out.data + client->sent, client->out.size - client->sent, MSG_NOSIGNAL);
    if (size < 0 && (errno == EAGAIN || errno == ENOTCONN)) return watch(epoll, EPOLL_CTL_MOD, client->fd, EPOLLIN | EPOLLOUT, client);
    if (size < 0) return;  // reading tells why
    client->sent += size;
  }
  watch(epoll, EPOLL_CTL_MOD, client->fd, EPOLLIN, client);
}

static void connect_client(struct client *client) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(options.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  client->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (client->fd < 0) fail("socket: %s", strerror(errno));
  set_nodelay(client->fd);
  if (connect(client->fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS) fail("connect: %s", strerror(errno));
  watch(epoll, EPOLL_CTL_ADD, client->fd, EPOLLIN | EPOLLOUT, client);
}

static void issue(struct client *client) {
  static struct buffer body;
  if (options.requests ? issued >= options.requests : seconds(CLOCK_MONOTONIC) >= end_s) return;
  buffer_reset(&body);
  make_body(&body, issued++);
  buffer_reset(&client->out);
  buffer_print(&client->out, "POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n",
               options.path, body.size);
  buffer_add(&client->out, body.data, body.size);
  client->sent = 0;
  client->busy = true;
  client->leaves = options.leave && issued % options.leave == 0;
  busy_clients++;
  response_reset(&client->response);
  if (client->fd < 0) connect_client(client);
  client->start_s = seconds(CLOCK_MONOTONIC);
  send_request(client);
}

static void receive(struct client *client) {
  static char data[READ_SIZE];
  ssize_t size = recv(client->fd, data, sizeof data, 0);
  if (size < 0 && errno == EAGAIN) return;
  if (size <= 0) {
    if (!client->busy) return disconnect(client);
    return size == 0 && response_at_eof(&client->response) ? conclude(client) : finish(client, &resets);
  }
  if (!client->busy) return disconnect(client);  // it says more than was asked
  response_feed(&client->response, data, size, seconds(CLOCK_MONOTONIC));
  if (client->response.state == COMPLETE || client->response.state == MALFORMED) conclude(client);
  else if (client->leaves && client->response.first_token) finish(client, &gone);
}

static void run(void) {
  struct client *clients = must_allocate(options.concurrency * sizeof *clients);
  struct epoll_event ready[BATCH];
  double begin_s = seconds(CLOCK_MONOTONIC), give_up_s = begin_s + options.timeout + (options.requests ? 1e9 : options.duration);
  end_s = begin_s + options.duration;
  last_done = begin_s;
  epoll = epoll_create1(EPOLL_CLOEXEC);
  for (long i = 0; i < options.concurrency; i++) {
    clients[i].fd = -1;
    issue(&clients[i]);
  }
  while (busy_clients && seconds(CLOCK_MONOTONIC) < give_up_s) {
    int count = epoll_wait(epoll, ready, BATCH, 1000);
    for (int i = 0; i < count; i++) {
      struct client *client = ready[i].data.ptr;
      if (client->fd >= 0 && client->busy && ready[i].events & EPOLLOUT) send_request(client);
      if (client->fd >= 0 && ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(client);
    }
  }
  late = busy_clients;
  failed += busy_clients;
  if (late) last_done = seconds(CLOCK_MONOTONIC);
  print_results(last_done - begin_s);
}

int main(int count, char **arguments) {
  const struct flag flags[] = {
      {"--port", NUMBER, &options.port}, {"--path", TEXT, &options.path}, {"--model", TEXT, &options.model},
      {"--mode", TEXT, &options.mode}, {"--words", TEXT, &options.words}, {"--extra", TEXT, &options.extra},
      {"--concurrency", NUMBER, &options.concurrency}, {"--requests", NUMBER, &options.requests},
      {"--prompt-words", NUMBER, &options.prompt_words}, {"--suffix-words", NUMBER, &options.suffix_words}, {"--turns", NUMBER, &options.turns},
      {"--out-tokens", NUMBER, &options.out_tokens}, {"--seed", NUMBER, &options.seed}, {"--duration", FRACTION, &options.duration},
      {"--timeout", FRACTION, &options.timeout}, {"--whole", SWITCH, &options.whole}, {"--leave", NUMBER, &options.leave},
      {"--print", NUMBER, &options.print},  // so many bodies, and no request
  };
  parse_flags(count, arguments, flags, sizeof flags / sizeof *flags);
  signal(SIGPIPE, SIG_IGN);
  read_words();
  add_words(&common_text, 4242, options.prompt_words - (strcmp(options.mode, "shared") ? 0 : options.suffix_words));
  struct buffer body = {0};
  for (long i = 0; i < options.print; i++, buffer_reset(&body)) {
    make_body(&body, i);
    printf("%.*s\n", (int)body.size, body.data);
  }
  if (!options.print) run();
  return 0;
}
