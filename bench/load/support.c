#include "load.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TEXT_BYTES (8u << 20)

static double clock_seconds(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

double now(void)
{
    return clock_seconds(CLOCK_MONOTONIC);
}

long long now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("odradek-load: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    _Exit(2); /* librdkafka's threads are running: no destructors */
}

/* CPU: of the process by its clock, of each thread from /proc, in nanoseconds */

static double thread_cpu(int id)
{
    char path[64];
    unsigned long long ns = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", id);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%llu", &ns) != 1)
            ns = 0;
        fclose(file);
    }
    return (double)ns * 1e-9;
}

static void thread_name(int id, char *name, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/comm", id);
    FILE *file = fopen(path, "r");
    name[0] = '\0';
    if (file) {
        if (fgets(name, (int)size, file))
            name[strcspn(name, "\n")] = '\0';
        fclose(file);
    }
}

/* Calls `visit` for each thread of this process. */
static void each_thread(struct usage *usage, void (*visit)(struct usage *, int))
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *entry;
    while (tasks && (entry = readdir(tasks)))
        if (entry->d_name[0] != '.')
            visit(usage, atoi(entry->d_name));
    if (tasks)
        closedir(tasks);
}

static void remember(struct usage *usage, int id)
{
    if (usage->thread_count == MAX_THREADS)
        return;
    usage->threads[usage->thread_count].id = id;
    usage->threads[usage->thread_count++].cpu_seconds = thread_cpu(id);
}

static void compare(struct usage *usage, int id)
{
    double used = thread_cpu(id);
    for (int i = 0; i < usage->thread_count; i++)
        if (usage->threads[i].id == id)
            used -= usage->threads[i].cpu_seconds;
    if (used / usage->seconds > usage->busiest) {
        usage->busiest = used / usage->seconds;
        thread_name(id, usage->busiest_name, sizeof usage->busiest_name);
    }
}

static void say_event(const char *name, const struct options *options)
{
    char byte;
    printf("{\"event\": \"%s\"}\n", name);
    fflush(stdout);
    while (options->watched && read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR)
        ;
}

void usage_begin(struct usage *usage, const struct options *options)
{
    memset(usage, 0, sizeof *usage);
    say_event("begin", options);
    each_thread(usage, remember);
    usage->cpu_began = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
    usage->began = now();
}

void usage_end(struct usage *usage, const struct options *options)
{
    usage->seconds = now() - usage->began;
    usage->cpu_seconds = clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - usage->cpu_began;
    each_thread(usage, compare);
    say_event("end", options);
}

void usage_print(const struct usage *usage)
{
    printf(", \"seconds\": %.6f, \"cpu_seconds\": %.6f, \"busiest_thread\": %.3f"
           ", \"busiest_thread_name\": \"%s\"",
           usage->seconds, usage->cpu_seconds, usage->busiest, usage->busiest_name);
}

/* librdkafka's configuration */

void set_conf(rd_kafka_conf_t *conf, const char *key, const char *value)
{
    char error[256];
    if (rd_kafka_conf_set(conf, key, value, error, sizeof error) != RD_KAFKA_CONF_OK)
        die("%s", error);
}

rd_kafka_conf_t *new_conf(const struct options *options)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set_conf(conf, "bootstrap.servers", options->bootstrap);
    for (int i = 0; i < options->property_count; i++) {
        char key[128];
        const char *equals = strchr(options->properties[i], '=');
        if (!equals || (size_t)(equals - options->properties[i]) >= sizeof key)
            die("not key=value: %s", options->properties[i]);
        snprintf(key, sizeof key, "%.*s", (int)(equals - options->properties[i]),
                 options->properties[i]);
        set_conf(conf, key, equals + 1);
    }
    return conf;
}

/* The content of the records */

uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(*state >> 33);
}

struct text new_text(size_t size)
{
    static const char *const paths[] = {"orders", "users", "search", "basket", "login", "status"};
    static const int statuses[] = {200, 200, 200, 201, 204, 304, 404, 500};
    struct text text = {malloc(TEXT_BYTES + size), TEXT_BYTES};
    size_t total = TEXT_BYTES + size, at = 0;
    uint64_t state = 20110112;
    if (!text.bytes)
        die("no memory for %zu bytes of text", total);
    while (at < total) {
        char line[256];
        int length = snprintf(
            line, sizeof line,
            "{\"ts\":17000%08u,\"host\":\"web-%02u\",\"path\":\"/api/v1/%s/%u\",\"status\":%d,"
            "\"ms\":%u.%u,\"user\":\"%08x\",\"trace\":\"%08x%08x\"}\n",
            next_random(&state) % 100000000, next_random(&state) % 40,
            paths[next_random(&state) % 6], next_random(&state) % 1000000,
            statuses[next_random(&state) % 8], next_random(&state) % 900, next_random(&state) % 10,
            next_random(&state), next_random(&state), next_random(&state));
        size_t room = total - at;
        memcpy(text.bytes + at, line, (size_t)length < room ? (size_t)length : room);
        at += (size_t)length;
    }
    return text;
}
