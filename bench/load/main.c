#include "load.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char USAGE[] =
    "usage: odradek-load produce  --bootstrap HOST:PORT --topic T [--count N] [--size BYTES]\n"
    "                             [--partitions N] [--connections N] [--seconds S] [--warm-up S]\n"
    "                             [--keys N] [-X KEY=VALUE]...\n"
    "       odradek-load consume  --bootstrap HOST:PORT --topic T --count N [--partitions N]\n"
    "                             [--seconds S] [-X KEY=VALUE]...\n"
    "       odradek-load requests --bootstrap HOST:PORT --request FILE [--connections N]\n"
    "                             [--depth N] [--seconds S] [--warm-up S]\n"
    "       odradek-load latency  --bootstrap HOST:PORT --topic T --rate N --output FILE\n"
    "                             [--size BYTES] [--partitions N] [--seconds S] [--warm-up S]\n"
    "                             [--from-end 1] [--acknowledged 1] [-X KEY=VALUE]...\n"
    "       odradek-load version\n"
    "each with [--broker PID]: ends at once if that process ends\n"
    "     and [--watched 1]: begins and ends the measured part after a byte on stdin\n";

static const struct option LONG_OPTIONS[] = {
    {"bootstrap", required_argument, NULL, 'b'},   {"topic", required_argument, NULL, 't'},
    {"request", required_argument, NULL, 'r'},     {"count", required_argument, NULL, 'n'},
    {"size", required_argument, NULL, 's'},        {"partitions", required_argument, NULL, 'p'},
    {"connections", required_argument, NULL, 'c'}, {"depth", required_argument, NULL, 'd'},
    {"seconds", required_argument, NULL, 'T'},     {"warm-up", required_argument, NULL, 'w'},
    {"rate", required_argument, NULL, 'a'},        {"output", required_argument, NULL, 'o'},
    {"keys", required_argument, NULL, 'k'},        {"from-end", required_argument, NULL, 'e'},
    {"broker", required_argument, NULL, 'B'},      {"acknowledged", required_argument, NULL, 'A'},
    {"watched", required_argument, NULL, 'W'},
    {NULL, 0, NULL, 0},
};

static void parse(int count, char **words, struct options *options)
{
    int letter;
    while ((letter = getopt_long(count, words, "X:", LONG_OPTIONS, NULL)) != -1) {
        switch (letter) {
        case 'b': options->bootstrap = optarg; break;
        case 't': options->topic = optarg; break;
        case 'r': options->request_file = optarg; break;
        case 'n': options->count = atol(optarg); break;
        case 's': options->size = (size_t)atol(optarg); break;
        case 'p': options->partitions = atoi(optarg); break;
        case 'c': options->connections = atoi(optarg); break;
        case 'd': options->depth = atoi(optarg); break;
        case 'T': options->seconds = atof(optarg); break;
        case 'w': options->warm_up = atof(optarg); break;
        case 'a': options->rate = atof(optarg); break;
        case 'k': options->keys = atol(optarg); break;
        case 'e': options->from_end = atol(optarg); break;
        case 'o': options->output_file = optarg; break;
        case 'A': options->acknowledged = atol(optarg); break;
        case 'W': options->watched = atol(optarg); break;
        case 'B': options->broker = atoi(optarg); break;
        case 'X':
            if (options->property_count == MAX_PROPERTIES)
                die("more than %d properties", MAX_PROPERTIES);
            options->properties[options->property_count++] = optarg;
            break;
        default: fputs(USAGE, stderr); exit(2);
        }
    }
}

/* Otherwise librdkafka would retry to connect until the timeout. */
static void *watch_broker(void *descriptor)
{
    struct pollfd ended = {.fd = (int)(intptr_t)descriptor, .events = POLLIN};
    while (poll(&ended, 1, -1) != 1)
        ;
    fputs("odradek-load: the broker's process has ended\n", stderr);
    _Exit(BROKER_ENDED);
}

static void watch(int broker)
{
    pthread_t watching;
    int descriptor = (int)syscall(SYS_pidfd_open, broker, 0);
    if (descriptor < 0) {
        fprintf(stderr, "odradek-load: the broker's process %d: %s\n", broker, strerror(errno));
        _Exit(errno == ESRCH ? BROKER_ENDED : 2);
    }
    pthread_create(&watching, NULL, watch_broker, (void *)(intptr_t)descriptor);
}

int main(int count, char **words)
{
    struct options options = {
        .count = 1000000, .size = 1024, .partitions = 1, .connections = 1, .depth = 1, .seconds = 30,
    };
    const char *command = count > 1 ? words[1] : "";
    int result = 2;
    signal(SIGPIPE, SIG_IGN);
    if (!strcmp(command, "version")) {
        printf("librdkafka %s\n", rd_kafka_version_str());
        return 0;
    }
    optind = 2;
    parse(count, words, &options);
    if (options.broker)
        watch(options.broker);
    if (options.bootstrap && options.topic && !strcmp(command, "produce"))
        result = run_produce(&options);
    else if (options.bootstrap && options.topic && !strcmp(command, "consume"))
        result = run_consume(&options);
    else if (options.bootstrap && options.request_file && !strcmp(command, "requests"))
        result = run_requests(&options);
    else if (options.bootstrap && options.topic && options.output_file && options.rate > 0 &&
             !strcmp(command, "latency"))
        result = run_latency(&options);
    else
        fputs(USAGE, stderr);
    fflush(stdout);
    _Exit(result); /* librdkafka's threads are running: no destructors */
}
