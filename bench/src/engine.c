// An engine that costs next to nothing, to measure what is in front of it: the SGLang or vLLM Generate service with constant answers.
//
// Every request gets the ids of --ids from their beginning, the smaller of --tokens and its own max_tokens of them. A step gives each
// running request its next message; steps are --step-us apart, or follow one another as fast as the sockets take them (0).
// One process can be many engines (--engines): each has a port, all run in one thread. It prints `ready URL... control PORT`; a datagram
// `step_us=N tokens=N chunk=N` to that port (empty: nothing changes) is answered with counters, as JSON.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <arpa/inet.h>

#include "grpc.h"
#include "protocol.h"

enum { BACKLOG = 64 << 10, MAX_ENGINES = 256, BATCH = 256 };  // a call with BACKLOG bytes unsent is left out of steps

struct job {
  struct request request;
  struct call *call;
  size_t place;  // in `running`
  long total, done;
  bool by_length;
};

static struct {
  const char *protocol, *unix_path, *ids, *model_path, *served_name;
  long port, engines, tokens, chunk, step_us, context, vocabulary, stop_token;
} options = {.protocol = "sglang", .model_path = "", .served_name = "bench", .engines = 1, .tokens = 1 << 30, .chunk = 1,
             .context = 262144, .vocabulary = 151936, .stop_token = 1};

static const struct protocol *protocol;
static uint32_t *ids;
static size_t id_count;
static struct job **running;
static size_t running_count, running_room;
static long started, finished, aborted, left, prompt_tokens;
static struct buffer scratch;
static int timer;
static bool timer_runs;

static void set_timer(long step_us) {
  bool wanted = step_us > 0 && running_count;
  if (wanted == timer_runs) return;
  struct timespec step = {step_us / 1000000, step_us % 1000000 * 1000};
  struct itimerspec setting = {0};
  if (wanted) setting.it_value = setting.it_interval = step;
  timerfd_settime(timer, 0, &setting, NULL);
  timer_runs = wanted;
}

static void remove_job(struct job *job) {
  running[job->place] = running[--running_count];
  running[job->place]->place = job->place;
  job->call->job = NULL;
  free(job);
}

// The closing message of a stream repeats the tokens before it, as both engines' own do; that of a whole answer has all of them.
static void advance(struct job *job) {
  struct call *call = job->call;
  long from = job->done, to = from + options.chunk < job->total ? from + options.chunk : job->total;
  job->done = to;
  bool last = to == job->total;
  for (long choice = 0; choice < job->request.choices; choice++) {
    struct progress progress = {.ids = ids, .known = id_count, .from = from, .to = to, .choice = choice};
    if (job->request.stream && to > from) {
      buffer_reset(&scratch);
      write_chunk(protocol, &scratch, &job->request, &progress);
      call_add(call, &scratch);
    }
    if (last) {
      if (!job->request.stream) progress.from = 0;
      buffer_reset(&scratch);
      write_complete(protocol, &scratch, &job->request, &progress, job->by_length ? -1 : options.stop_token);
      call_add(call, &scratch);
    }
  }
  if (last) {
    call->finished = true;
    finished++;
    remove_job(job);
  }
  if (last || call->out.size > call->taken) call_wake(call);
}

static void step(void) {
  for (size_t i = running_count; i-- > 0;)  // from the end: a finished one is replaced by the last, which has had its turn
    if (running[i]->call->out.size - running[i]->call->taken < BACKLOG) advance(running[i]);
}

static void generate(struct call *call) {
  struct job *job = must_allocate(sizeof *job);
  if (!read_request(protocol, &call->request, &job->request)) {
    free(job);
    return call_refuse(call, "3", "malformed request");
  }
  buffer_free(&call->request);
  job->by_length = job->request.max_tokens >= 0 && job->request.max_tokens <= options.tokens;
  job->total = job->by_length ? job->request.max_tokens : options.tokens;
  job->call = call;
  call->job = job;
  if (running_count == running_room) {
    running_room = running_room ? running_room * 2 : 64;
    running = realloc(running, running_room * sizeof *running);
    if (!running) fail("out of memory");
  }
  job->place = running_count;
  running[running_count++] = job;
  started++;
  prompt_tokens += job->request.prompt_tokens;
  call_open(call);
}

static void abort_job(struct call *call) {
  char id[128];
  bool found = false;
  bool named = read_id(call->request.data, call->request.size, id, sizeof id);
  for (size_t i = running_count; named && i-- > 0;) {
    if (strcmp(running[i]->request.id, id)) continue;
    struct call *ended = running[i]->call;
    remove_job(running[i]);
    ended->finished = found = true;
    call_wake(ended);
  }
  aborted++;
  buffer_reset(&scratch);
  protocol->aborted(&scratch, found);
  call_reply(call, &scratch);
}

static void on_call(struct call *call) {
  size_t prefix = strlen(protocol->service);
  const char *method = call->path + prefix;
  struct facts facts = {options.model_path, options.served_name, options.context, options.vocabulary, options.stop_token, running_count};
  if (strncmp(call->path, protocol->service, prefix)) return call_refuse(call, "12", "no such service");
  if (call->request.size < 5 || call->request.data[0]) return call_refuse(call, "3", "no plain message");
  buffer_drop(&call->request, 5);
  if (!strcmp(method, "Generate")) return generate(call);
  if (!strcmp(method, "Abort")) return abort_job(call);
  buffer_reset(&scratch);
  if (!strcmp(method, "HealthCheck")) write_health(&scratch);
  else if (!strcmp(method, "GetModelInfo")) protocol->model_info(&scratch, &facts);
  else if (!strcmp(method, "GetServerInfo")) protocol->server_info(&scratch, &facts);
  else if (!strcmp(method, "GetLoads")) write_loads(&scratch, &facts);
  else return call_refuse(call, "12", "no such method");
  call_reply(call, &scratch);
}

static void on_gone(struct call *call) {
  if (!call->job) return;
  left++;
  remove_job(call->job);
}

static void control(int fd) {
  char text[256], answer[256];
  struct sockaddr_in from;
  socklen_t size = sizeof from;
  ssize_t length = recvfrom(fd, text, sizeof text - 1, 0, (struct sockaddr *)&from, &size);
  if (length < 0) return;
  text[length] = 0;
  for (char *rest = text, *item; (item = strtok_r(rest, " ", &rest));) {
    if (!strncmp(item, "step_us=", 8)) options.step_us = atol(item + 8);
    if (!strncmp(item, "tokens=", 7)) options.tokens = atol(item + 7);
    if (!strncmp(item, "chunk=", 6)) options.chunk = atol(item + 6);
  }
  set_timer(0);
  int written = snprintf(answer, sizeof answer,
                         "{\"started\":%ld,\"finished\":%ld,\"aborted\":%ld,\"left\":%ld,\"prompt_tokens\":%ld,\"running\":%zu,\"cpu_s\":%.6f}",
                         started, finished, aborted, left, prompt_tokens, running_count, seconds(CLOCK_PROCESS_CPUTIME_ID));
  sendto(fd, answer, written, 0, (struct sockaddr *)&from, size);
}

static void read_ids(void) {
  FILE *file = fopen(options.ids ? options.ids : "", "r");
  size_t room = 0;
  for (unsigned id; file && fscanf(file, "%u", &id) == 1;) {
    if (id_count == room) ids = realloc(ids, (room = room ? room * 2 : 256) * sizeof *ids);
    if (!ids) fail("out of memory");
    ids[id_count++] = id;
  }
  if (!id_count) fail("--ids names no file of token ids");
  fclose(file);
}

static volatile sig_atomic_t stopping;
static void on_signal(int number) { (void)number, stopping = 1; }

int main(int count, char **arguments) {
  const struct flag flags[] = {
      {"--protocol", TEXT, &options.protocol}, {"--port", NUMBER, &options.port}, {"--unix", TEXT, &options.unix_path},
      {"--engines", NUMBER, &options.engines}, {"--ids", TEXT, &options.ids}, {"--tokens", NUMBER, &options.tokens},
      {"--chunk", NUMBER, &options.chunk}, {"--step-us", NUMBER, &options.step_us}, {"--model-path", TEXT, &options.model_path},
      {"--served-name", TEXT, &options.served_name}, {"--context", NUMBER, &options.context},
      {"--vocabulary", NUMBER, &options.vocabulary}, {"--stop-token", NUMBER, &options.stop_token},
  };
  parse_flags(count, arguments, flags, sizeof flags / sizeof *flags);
  protocol = find_protocol(options.protocol);
  if (!protocol) fail("--protocol is sglang or vllm");
  if (options.engines < 1 || options.engines > MAX_ENGINES || (options.engines > 1 && (options.port || options.unix_path)))
    fail("--engines is 1 to %d; several take free ports", MAX_ENGINES);
  read_ids();
  struct sigaction action = {.sa_handler = on_signal};
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGINT, &action, NULL);

  struct server server = {.epoll = epoll_create1(EPOLL_CLOEXEC), .on_call = on_call, .on_gone = on_gone};
  int listeners[MAX_ENGINES], bound, control_port, control_fd = open_control(&control_port);
  timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  printf("ready");
  for (long i = 0; i < options.engines; i++) {
    listeners[i] = options.unix_path ? listen_unix(options.unix_path) : listen_tcp(options.port, &bound);
    watch(server.epoll, EPOLL_CTL_ADD, listeners[i], EPOLLIN, &listeners[i]);
    if (options.unix_path) printf(" unix:%s", options.unix_path);
    else printf(" grpc://127.0.0.1:%d", bound);
  }
  watch(server.epoll, EPOLL_CTL_ADD, timer, EPOLLIN, &timer);
  watch(server.epoll, EPOLL_CTL_ADD, control_fd, EPOLLIN, &control_fd);
  printf(" control %d\n", control_port);
  fflush(stdout);

  struct epoll_event events[BATCH];
  while (!stopping) {
    bool now = running_count && !options.step_us;
    int ready = epoll_wait(server.epoll, events, BATCH, now ? 0 : -1);
    for (int i = 0; i < ready; i++) {
      void *tag = events[i].data.ptr;
      uint64_t ticks;
      if (tag == &control_fd) control(control_fd);
      else if (tag == &timer) now |= read(timer, &ticks, sizeof ticks) > 0;
      else if (tag >= (void *)listeners && tag < (void *)(listeners + MAX_ENGINES)) server_accept(&server, *(int *)tag);
      else server_event(&server, tag, events[i].events);
    }
    if (now || !options.step_us) step();
    set_timer(options.step_us);
    server_flush(&server);
  }
  if (options.unix_path) unlink(options.unix_path);
  return 0;
}
