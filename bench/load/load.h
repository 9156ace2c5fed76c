/* odradek-load: the client that the benchmarks use to load a broker.
 *
 * A Python client reaches its limit before the broker does. Each subcommand is one file:
 * produce.c, consume.c and latency.c drive librdkafka, requests.c writes prebuilt request bytes to
 * plain sockets. support.c has the shared functions.
 *
 * On stdout: the line {"event": "begin"} before the measured part, {"event": "end"} after it, and one
 * JSON object. With `watched` each event waits for a byte on stdin, or its end: the bench
 * reads the broker's CPU time while no request is sent. Failures are one line on stderr and exit code 2;
 * BROKER_ENDED if the process `broker` ended first.
 */
#ifndef ODRADEK_LOAD_H
#define ODRADEK_LOAD_H

#include <stddef.h>
#include <stdint.h>
#include <librdkafka/rdkafka.h>

#define MAX_PROPERTIES 64
#define MAX_THREADS 512
#define BROKER_ENDED 3

struct options {
    const char *bootstrap;
    const char *topic;
    const char *request_file; /* requests: the bytes of the request */
    long count;               /* records to write or read in all */
    size_t size;              /* bytes of a record's value */
    long from_end;            /* latency: if not 0, earlier records are not read */
    long acknowledged;        /* latency: if not 0, up to the acknowledgement; nothing is read */
    long keys;                /* produce: the number of different keys, drawn at random; 0: none */
    long watched;             /* if not 0, the measured part begins and ends after a byte on stdin */
    int partitions;
    int connections;
    int depth;                /* requests: the number in flight on each connection */
    double seconds;           /* the measured part ends after this long, finished or not */
    double warm_up;           /* seconds of the same load before the measured part */
    double rate;              /* latency: records a second */
    const char *output_file;  /* latency: the latency of each record */
    int broker;               /* process id of the broker, whose end ends the run; 0: unknown */
    const char *properties[MAX_PROPERTIES]; /* librdkafka's, as "key=value" */
    int property_count;
};

int run_produce(const struct options *options);
int run_consume(const struct options *options);
int run_requests(const struct options *options);
int run_latency(const struct options *options);

/* The resources that this process used between usage_begin and usage_end. `busiest` is the share of a core that
 * its busiest thread used: near 1, that thread limits the rate. */
struct usage {
    double seconds;
    double cpu_seconds;
    double busiest;
    char busiest_name[32];

    double began;
    double cpu_began;
    int thread_count;
    struct {
        int id;
        double cpu_seconds;
    } threads[MAX_THREADS];
};

/* Both also print their line, and wait for a byte on stdin with `watched`. */
void usage_begin(struct usage *usage, const struct options *options);
void usage_end(struct usage *usage, const struct options *options);
void usage_print(const struct usage *usage); /* as members of a JSON object, with a comma first */

double now(void);       /* CLOCK_MONOTONIC, seconds */
long long now_ns(void); /* the same, nanoseconds */

_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A configuration with the bootstrap servers and the properties of the command line. */
rd_kafka_conf_t *new_conf(const struct options *options);
void set_conf(rd_kafka_conf_t *conf, const char *key, const char *value);

/* Text to take values from: any `size` bytes that start in the first `text->length` can be read. It
 * is log lines in JSON, so that it compresses as real records do (lz4 to about half). */
struct text {
    char *bytes;
    size_t length;
};
struct text new_text(size_t size);

uint32_t next_random(uint64_t *state); /* 31 bits; the same ones for the same state */

#endif
