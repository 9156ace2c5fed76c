/* latency: records at a fixed rate; the latency of a record is from its due time to its arrival.
 *
 * With `--acknowledged 1` it is to its acknowledgement, without a consumer.
 *
 * A record contains its due time, not the time when it was sent: if the producer is blocked, the
 * records that it could not send are late and count as late (no coordinated omission). The delay of
 * the producer is recorded too, so that the client's part can be separated from the broker's.
 *
 * SIGINT ends it early, if the duration of a concurrent operation is unknown. Records that were due by
 * then are still sent.
 *
 * The output file gets the latencies of all records and then their latenesses, in nanoseconds, as
 * 64-bit integers of this machine; a record that did not arrive has latency 0.
 */
#include "load.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define WARM_UP_PAUSE_NS 2000000LL
#define FIRST_RECORD_SECONDS 20
#define LAST_RECORDS_SECONDS 60
/* librdkafka's maximum: the stream continues while the broker is paused. */
#define QUEUED_RECORDS "10000000"
#define QUEUED_KBYTES "2097151"
#define A_SECOND 1000000000LL

/* The beginning of a record's value; `due_ns` is 0 in a warm-up record. */
struct stamp {
    int64_t due_ns;
    int64_t number;
};

static const struct options *options;
static long record_count;
static long long began_ns; /* of CLOCK_MONOTONIC: when the first record was due */
static int64_t *latency_ns, *lateness_ns;
static atomic_long received, acknowledged, refused;
static atomic_int first_came, stopping;
static atomic_llong end_ns = LLONG_MAX; /* records due from then on are not sent */
static char first_error[256];

static void sleep_until(long long moment_ns)
{
    struct timespec moment = {moment_ns / A_SECOND, moment_ns % A_SECOND};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, NULL) == EINTR)
        ;
}

static rd_kafka_t *new_client(rd_kafka_type_t type, rd_kafka_conf_t *conf)
{
    char error[256];
    rd_kafka_t *client = rd_kafka_new(type, conf, error, sizeof error);
    if (!client)
        die("%s", error);
    return client;
}

/* The consumer: reads every partition from its first offset, or from its end */

static rd_kafka_t *open_consumer(void)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set_conf(conf, "bootstrap.servers", options->bootstrap);
    set_conf(conf, "group.id", "odradek-load"); /* librdkafka requires one; nothing is committed */
    set_conf(conf, "enable.auto.commit", "false");
    set_conf(conf, "fetch.min.bytes", "1");
    set_conf(conf, "socket.nagle.disable", "true");
    rd_kafka_t *consumer = new_client(RD_KAFKA_CONSUMER, conf);
    rd_kafka_poll_set_consumer(consumer);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(options->partitions);
    for (int partition = 0; partition < options->partitions; partition++)
        rd_kafka_topic_partition_list_add(list, options->topic, partition)->offset =
            options->from_end ? RD_KAFKA_OFFSET_END : RD_KAFKA_OFFSET_BEGINNING;
    rd_kafka_assign(consumer, list);
    rd_kafka_topic_partition_list_destroy(list);
    return consumer;
}

static void arrived(const rd_kafka_message_t *message, long long at_ns)
{
    struct stamp stamp;
    if (message->err || message->len < sizeof stamp)
        return;
    memcpy(&stamp, message->payload, sizeof stamp);
    if (!stamp.due_ns) {
        first_came = 1;
    } else if (stamp.number < record_count && !latency_ns[stamp.number]) {
        latency_ns[stamp.number] = at_ns - stamp.due_ns;
        received++;
    }
}

static void *consume(void *consumer)
{
    while (!stopping) {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(consumer, 100);
        if (!message)
            continue;
        arrived(message, now_ns());
        rd_kafka_message_destroy(message);
    }
    return NULL;
}

/* The producer; with `acknowledged`, a separate thread receives the delivery reports */

static void *hear(void *producer)
{
    while (!stopping)
        rd_kafka_poll(producer, 100);
    return NULL;
}

static void hear_now(rd_kafka_t *producer, int wait_ms)
{
    if (!options->acknowledged)
        rd_kafka_poll(producer, wait_ms);
    else if (wait_ms)
        sleep_until(now_ns() + WARM_UP_PAUSE_NS);
}

static void on_delivery(rd_kafka_t *producer, const rd_kafka_message_t *message, void *opaque)
{
    (void)producer;
    (void)opaque;
    if (options->acknowledged)
        arrived(message, now_ns());
    if (!message->err)
        acknowledged++;
    else if (!refused++)
        snprintf(first_error, sizeof first_error, "%s", rd_kafka_err2str(message->err));
}

static rd_kafka_t *open_producer(void)
{
    rd_kafka_conf_t *conf = new_conf(options);
    const char *linger = "0"; /* unless the command line has another */
    for (int i = 0; i < options->property_count; i++)
        if (!strncmp(options->properties[i], "linger.ms=", 10))
            linger = options->properties[i] + 10;
    set_conf(conf, "linger.ms", linger);
    set_conf(conf, "socket.nagle.disable", "true");
    set_conf(conf, "queue.buffering.max.messages", QUEUED_RECORDS);
    set_conf(conf, "queue.buffering.max.kbytes", QUEUED_KBYTES);
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    return new_client(RD_KAFKA_PRODUCER, conf);
}

static void send_record(rd_kafka_t *producer, rd_kafka_topic_t *topic, char *record,
                        struct stamp stamp)
{
    memcpy(record, &stamp, sizeof stamp);
    while (rd_kafka_produce(topic, (int32_t)(stamp.number % options->partitions), RD_KAFKA_MSG_F_COPY,
                            record, options->size, NULL, 0, NULL)) {
        if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
            die("a record can't be sent: %s", rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(producer, 1); /* this record and the following ones become late */
    }
}

/* Until records arrive, and for `warm_up` more seconds, so that connections, the state of the
 * partitions and the code on both sides are warm. */
static void warm_up(rd_kafka_t *producer, rd_kafka_topic_t *topic, char *record)
{
    struct stamp stamp = {0, 0};
    long long end = now_ns() + FIRST_RECORD_SECONDS * A_SECOND;
    for (; !first_came; stamp.number++) {
        if (now_ns() > end)
            die("no record came through in %d s %s", FIRST_RECORD_SECONDS, first_error);
        send_record(producer, topic, record, stamp);
        hear_now(producer, 100);
    }
    end = now_ns() + (long long)(options->warm_up * A_SECOND);
    for (; now_ns() < end; stamp.number++) {
        send_record(producer, topic, record, stamp);
        hear_now(producer, 0);
        sleep_until(now_ns() + WARM_UP_PAUSE_NS);
    }
    rd_kafka_flush(producer, LAST_RECORDS_SECONDS * 1000);
    acknowledged = refused = 0;
}

static void end_early(int number)
{
    (void)number;
    end_ns = now_ns();
}

/* The number of records that were sent. */
static long send_at_rate(rd_kafka_t *producer, rd_kafka_topic_t *topic, char *record)
{
    long i;
    began_ns = now_ns() + A_SECOND / 100;
    for (i = 0; i < record_count; i++) {
        long long due = began_ns + (long long)((double)i * A_SECOND / options->rate);
        if (due >= end_ns)
            break;
        sleep_until(due);
        lateness_ns[i] = now_ns() - due;
        send_record(producer, topic, record, (struct stamp){due, i});
        hear_now(producer, 0);
    }
    rd_kafka_flush(producer, LAST_RECORDS_SECONDS * 1000);
    long long end = now_ns() + LAST_RECORDS_SECONDS * A_SECOND;
    while (received < acknowledged && now_ns() < end)
        sleep_until(now_ns() + A_SECOND / 100);
    return i;
}

static void write_output(long sent)
{
    size_t count = (size_t)sent;
    FILE *file = fopen(options->output_file, "wb");
    if (!file || fwrite(latency_ns, sizeof *latency_ns, count, file) != count ||
        fwrite(lateness_ns, sizeof *lateness_ns, count, file) != count || fclose(file))
        die("%s: %s", options->output_file, strerror(errno));
}

int run_latency(const struct options *given)
{
    pthread_t consuming;
    struct usage usage;
    options = given;
    record_count = (long)(options->rate * options->seconds);
    if (record_count < 1 || options->size < sizeof(struct stamp))
        die("at least one record, of at least %zu bytes", sizeof(struct stamp));
    signal(SIGINT, end_early);
    prctl(PR_SET_TIMERSLACK, 1); /* ns: sleeps end on time */
    latency_ns = calloc((size_t)record_count, sizeof *latency_ns);
    lateness_ns = calloc((size_t)record_count, sizeof *lateness_ns);
    char *record = calloc(1, options->size);
    if (!latency_ns || !lateness_ns || !record)
        die("no memory for %ld records", record_count);

    rd_kafka_t *producer = open_producer();
    if (options->acknowledged)
        pthread_create(&consuming, NULL, hear, producer);
    else
        pthread_create(&consuming, NULL, consume, open_consumer());
    rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, options->topic, NULL);
    warm_up(producer, topic, record);
    usage_begin(&usage, options);
    long sent = send_at_rate(producer, topic, record);
    usage_end(&usage, options);
    stopping = 1;
    pthread_join(consuming, NULL);
    write_output(sent);

    printf("{\"sent\": %ld, \"acknowledged\": %ld, \"refused\": %ld, \"received\": %ld, "
           "\"began_ns\": %lld, \"error\": \"%s\"",
           sent, acknowledged, refused, received, began_ns, first_error);
    usage_print(&usage);
    puts("}");
    return 0;
}
