// Kernel texts become libraries: through a few `mslc.py serve` processes, with a cache on disk by the text's hash.
// A server compiles what several threads ask for at once together, which takes half the time.
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

char *compile(const char *text, char **message);
enum { SERVERS = 2 };
// One who asks; answers come in the order of requests.
struct asker { char *answer; int done; struct asker *next; };
static struct server { pid_t pid; FILE *to, *from; int waiting; struct asker *first, *last; } servers[SERVERS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t answered = PTHREAD_COND_INITIALIZER;

// Hands out answers until the server ends, which is an answer to all who wait.
static void *receive(void *of) {
  struct server *s = of;
  for (;;) {
    char *line = NULL;
    size_t capacity = 0;
    int ended = getline(&line, &capacity, s->from) < 0;
    pthread_mutex_lock(&lock);
    for (struct asker *a; (a = s->first);) {
      s->first = a->next;
      s->waiting--;
      a->answer = ended ? strdup("{\"error\": \"tools/metal/mslc.py has ended\"}") : line;
      a->done = 1;
      if (!ended) break;
    }
    if (ended) s->pid = 0;
    pthread_cond_broadcast(&answered);
    pthread_mutex_unlock(&lock);
    if (ended) return NULL;
  }
}

static int start(struct server *s) {
  int in[2], out[2];
  if (s->pid) return 1;
  // The ends are closed in other children, so that each server ends with this process.
  if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC)) return 0;
  pid_t pid = fork();
  if (pid == 0) {
    dup2(in[0], 0);
    dup2(out[1], 1);
    execlp("python3", "python3", MSLC, "serve", (char *)NULL);
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  if (pid < 0) return 0;
  s->to = fdopen(in[1], "w");
  s->from = fdopen(out[0], "r");
  s->pid = pid;
  pthread_t thread;
  return !pthread_create(&thread, NULL, receive, s) && !pthread_detach(thread);
}

// The text of a JSON string, in place of its escapes what they mean (but for \u, which stays).
static char *unescaped(const char *s) {
  char *out = malloc(strlen(s) + 1), *o = out;
  for (; *s && *s != '"'; s++) {
    if (*s != '\\' || !s[1]) { *o++ = *s; continue; }
    s++;
    *o++ = *s == 'n' ? '\n' : *s == 't' ? '\t' : *s;
  }
  *o = 0;
  return out;
}

// How much kernels are optimised: METAL_DOUBLE_LEVEL, for texts that nobody runs, or as the kernels of the tests are.
static const char *level(void) {
  const char *own = getenv("METAL_DOUBLE_LEVEL");
  return own ? own : LEVEL;
}

static int request(const char *source, const char *out, char **message) {
  struct asker me = {NULL, 0, NULL};
  pthread_mutex_lock(&lock);
  struct server *s = servers;
  for (int i = 1; i < SERVERS; i++)
    if (servers[i].waiting < s->waiting) s = &servers[i];
  if (!start(s)) {
    pthread_mutex_unlock(&lock);
    *message = strdup("python3 tools/metal/mslc.py serve does not start");
    return 0;
  }
  if (s->first) s->last->next = &me;
  else s->first = &me;
  s->last = &me;
  s->waiting++;
  fprintf(s->to, "{\"source\": \"%s\", \"out\": \"%s\", \"level\": %s}\n", source, out, level());
  fflush(s->to);
  while (!me.done) pthread_cond_wait(&answered, &lock);
  pthread_mutex_unlock(&lock);
  int good = strncmp(me.answer, "{\"error\": \"", 11) != 0;
  if (!good) *message = unescaped(me.answer + 11);
  free(me.answer);
  return good;
}

char *compile(const char *text, char **message) {
  static unsigned count;
  uint64_t hash[2] = {0xcbf29ce484222325u, 0x84222325cbf29ce4u};
  for (const char *c = text; *c; c++)
    for (int i = 0; i < 2; i++) hash[i] = (hash[i] ^ (unsigned char)*c) * (i ? 0x9e3779b97f4a7c15u : 0x100000001b3u);
  char path[512], source[600], fresh[600];
  const char *tools = getenv("MSL_CACHE");
  if (!tools) {
    *message = strdup("MSL_CACHE is not set: run.sh does so");
    return NULL;
  }
  snprintf(path, sizeof path, "%.400s/kernels", tools);
  mkdir(tools, 0777);
  mkdir(path, 0777);
  snprintf(path, sizeof path, "%.400s/kernels/%016lx%016lx-%.8s.so", tools, (unsigned long)hash[0], (unsigned long)hash[1], level());
  if (access(path, R_OK) == 0) return strdup(path);
  unsigned number = __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
  snprintf(source, sizeof source, "%s.%d.%u.metal", path, getpid(), number);
  snprintf(fresh, sizeof fresh, "%s.%d.%u", path, getpid(), number);
  FILE *f = fopen(source, "w");
  if (!f) {
    *message = strdup("the folder of compiled kernels, in MSL_CACHE, cannot be written");
    return NULL;
  }
  fputs(text, f);
  fclose(f);
  int good = request(source, fresh, message) && rename(fresh, path) == 0;
  unlink(source);
  if (!good && !*message) *message = strdup("the compiled kernel cannot be moved to its place");
  return good ? strdup(path) : NULL;
}
