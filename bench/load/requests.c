/* requests: sends the same prebuilt request repeatedly, as fast as responses arrive.
 *
 * `depth` requests are in flight on each connection; after a response, the next request is sent.
 * Responses arrive in order and are not parsed. Requests in flight when the measured part begins or
 * ends are awaited, so that `responses` counts all requests that the broker processed. One thread, epoll, blocking writes (a request is
 * small, so that the requests in flight fit the socket's buffer).
 */
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_DEPTH 1024
#define RECEIVE_BYTES 65536
#define EVENTS 128
#define LAST_RESPONSES_SECONDS 30

static long in_flight; /* requests, on all connections */

struct connection {
    int socket;
    long long sent_at[MAX_DEPTH]; /* a ring: when the requests in flight were sent, ns */
    unsigned sent, responded;
    size_t have; /* bytes in `received` */
    unsigned char received[RECEIVE_BYTES];
};

/* Times in buckets, SUB to each power of two: a value is known to within 1/SUB of itself. */
#define SUB_BITS 6
#define SUB (1 << SUB_BITS)
static long histogram[64 * SUB];

static unsigned bucket_of(uint64_t value)
{
    if (value < SUB)
        return (unsigned)value;
    unsigned shift = 63u - (unsigned)__builtin_clzll(value) - SUB_BITS;
    return (shift + 1) * SUB + (unsigned)(value >> shift) - SUB;
}

static double upper_bound(unsigned bucket)
{
    if (bucket < SUB)
        return bucket;
    unsigned shift = bucket / SUB - 1;
    return (double)(((uint64_t)(bucket % SUB + SUB + 1) << shift) - 1);
}

static double percentile(long total, double share)
{
    long below = 0, wanted = (long)((double)total * share);
    for (unsigned bucket = 0; bucket < 64 * SUB; bucket++) {
        below += histogram[bucket];
        if (below > wanted)
            return upper_bound(bucket);
    }
    return 0;
}

static char *read_request(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        die("%s: %s", path, strerror(errno));
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *request = malloc(*size);
    if (fread(request, 1, *size, file) != *size)
        die("%s: cannot be read", path);
    fclose(file);
    return request;
}

static int connect_to(const char *bootstrap)
{
    char host[256];
    const char *colon = strrchr(bootstrap, ':');
    struct addrinfo *found, hints = {.ai_socktype = SOCK_STREAM};
    int one = 1;
    if (!colon || (size_t)(colon - bootstrap) >= sizeof host)
        die("not HOST:PORT: %s", bootstrap);
    snprintf(host, sizeof host, "%.*s", (int)(colon - bootstrap), bootstrap);
    if (getaddrinfo(host, colon + 1, &hints, &found))
        die("no such host: %s", host);
    int fd = socket(found->ai_family, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen))
        die("%s: %s", bootstrap, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    freeaddrinfo(found);
    return fd;
}

static void send_request(struct connection *connection, const char *request, size_t size)
{
    connection->sent_at[connection->sent++ % MAX_DEPTH] = now_ns();
    if (write(connection->socket, request, size) != (ssize_t)size)
        die("write: %s", strerror(errno));
    in_flight++;
}

/* Reads the received bytes; returns the number of complete responses in them. */
static long take_responses(struct connection *connection)
{
    ssize_t got = recv(connection->socket, connection->received + connection->have,
                       RECEIVE_BYTES - connection->have, MSG_DONTWAIT);
    if (got == 0)
        die("the broker closed a connection");
    if (got < 0 && errno != EAGAIN)
        die("recv: %s", strerror(errno));
    if (got > 0)
        connection->have += (size_t)got;
    size_t at = 0;
    long responses = 0;
    long long arrived_at = now_ns();
    while (connection->have - at >= 4) {
        uint32_t length;
        memcpy(&length, connection->received + at, 4);
        length = ntohl(length);
        if (length + 4 > RECEIVE_BYTES)
            die("a response of %u bytes", length);
        if (connection->have - at < length + 4)
            break;
        at += length + 4;
        responses++;
        in_flight--;
        histogram[bucket_of((uint64_t)(arrived_at -
                                       connection->sent_at[connection->responded++ % MAX_DEPTH]))]++;
    }
    memmove(connection->received, connection->received + at, connection->have - at);
    connection->have -= at;
    return responses;
}

/* Reads responses until `end` and sends a request after each; without more requests, reads all responses. */
static long exchange(int poll, double end, const char *request, size_t size)
{
    struct epoll_event events[EVENTS];
    long done = 0;
    while (now() < end && (request || in_flight)) {
        int ready = epoll_wait(poll, events, EVENTS, 100);
        for (int i = 0; i < ready; i++) {
            struct connection *connection = events[i].data.ptr;
            for (long responses = take_responses(connection); responses > 0; responses--, done++)
                if (request)
                    send_request(connection, request, size);
        }
    }
    return done;
}

static long take_the_last(int poll)
{
    long done = exchange(poll, now() + LAST_RESPONSES_SECONDS, NULL, 0);
    if (in_flight)
        die("%ld requests have no response after %d s", in_flight, LAST_RESPONSES_SECONDS);
    return done;
}

static void send_first(struct connection *connections, const struct options *options,
                       const char *request, size_t size)
{
    for (int i = 0; i < options->connections; i++)
        for (int j = 0; j < options->depth; j++)
            send_request(&connections[i], request, size);
}

int run_requests(const struct options *options)
{
    size_t size;
    struct usage usage;
    char *request = read_request(options->request_file, &size);
    struct connection *connections = calloc((size_t)options->connections, sizeof *connections);
    int poll = epoll_create1(0);
    if (options->depth > MAX_DEPTH)
        die("a depth of at most %d", MAX_DEPTH);
    for (int i = 0; i < options->connections; i++) {
        connections[i].socket = connect_to(options->bootstrap);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &connections[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, connections[i].socket, &event);
    }

    send_first(connections, options, request, size);
    long others = exchange(poll, now() + options->warm_up, request, size) + take_the_last(poll);
    memset(histogram, 0, sizeof histogram);
    usage_begin(&usage, options);
    send_first(connections, options, request, size);
    long done = exchange(poll, usage.began + options->seconds, request, size);
    usage_end(&usage, options);
    if (!done)
        die("no response in %.1f s", options->seconds);
    double p50 = percentile(done, 0.5), p99 = percentile(done, 0.99);
    others += take_the_last(poll);

    printf("{\"requests\": %ld, \"responses\": %ld, \"p50_us\": %.1f, \"p99_us\": %.1f", done,
           done + others, p50 / 1e3, p99 / 1e3);
    usage_print(&usage);
    puts("}");
    return 0;
}
