/*
 * Which way from a file into a sink is the fastest here? Each round measures every method once,
 * in an order that turns, so that what else the machine does meets all of them; what counts are
 * the ratios within a round.
 *
 *   gcc -std=c11 -O2 -Wall -Wextra -o relay-probe relay-probe.c methods.c uring.c
 *   relay-probe -f FILE [-k null|tcp|unix|pipe|file|fresh] [-r trunc|read|splice] [-b CHUNK]
 *               [-P SINK_PIPE_BYTES] [-l PASSES] [-n ROUNDS] [-c SENDER_CPU,RECEIVER_CPU] METHOD...
 *
 * A method is NAME[=ARGUMENT][@CHUNK]: what the argument is stands at the method; the chunk is the
 * sender's own, if it isn't to be the receiver's too.
 *
 * A line for each method: source, sink, receiver, CPUs, chunk, method; MiB/s (median, min, max);
 * ratio to the first method in the same round (median, min, max); CPU milliseconds of both
 * processes for each GiB (median).
 */
#define _GNU_SOURCE
#include "probe.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum receiver { RECEIVE_TRUNC, RECEIVE_READ, RECEIVE_SPLICE };
enum { METHODS_MAX = 24, ROUNDS_MAX = 99, MEASUREMENT_SECONDS_MAX = 60, CHUNK_BYTES_MAX = 1 << 20 };

extern const struct method methods[];

static const char *const sinks[] = { "null", "tcp", "unix", "pipe", "file", "fresh" };
static const char *const receivers[] = { "trunc", "read", "splice" };

static struct {
    const char *file;
    enum sink sink;
    enum receiver receiver;
    size_t chunk, sink_pipe_bytes, bytes;
    int passes, rounds, cpus[2];
} options = { NULL, SINK_NULL, RECEIVE_READ, 65536, 0, 0, 1, 7, { 0, 1 } };

struct result {
    uint64_t ns, cpu_ns, notices, notices_copied;
    bool valid;
};

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static uint64_t cpu_ns(const struct rusage *usage)
{
    return (uint64_t)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000000 +
           (uint64_t)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) * 1000;
}

static size_t size(const char *text)
{
    char *unit;
    size_t number = strtoull(text, &unit, 10);
    return number << (*unit == 'K' ? 10 : *unit == 'M' ? 20 : *unit == 'G' ? 30 : 0);
}

static int index_of(const char *text, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(text, names[i]))
            return i;
    errno = EINVAL;
    fail(text);
}

/* A child dies with its parent and cannot hang for ever. A CPU below 0 leaves it unpinned. */
static void begin_child(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu < 0 ? 0 : cpu, &set);
    if (cpu >= 0 && sched_setaffinity(0, sizeof set, &set))
        fail("sched_setaffinity");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(MEASUREMENT_SECONDS_MAX);
}

static void connect_tcp(int ends[2])
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) ||
        listen(listener, 1) || getsockname(listener, (struct sockaddr *)&address, &length))
        fail("listen on 127.0.0.1");
    ends[1] = socket(AF_INET, SOCK_STREAM, 0);
    if (ends[1] < 0 || connect(ends[1], (struct sockaddr *)&address, length))
        fail("connect to 127.0.0.1");
    ends[0] = accept(listener, NULL, NULL);
    if (ends[0] < 0)
        fail("accept");
    close(listener);
}

/* ends[0] is for the receiver, -1 if there is none. */
static void open_sink(int ends[2])
{
    static int file = -1;
    char directory[4096];
    size_t pipe_bytes = options.sink_pipe_bytes ? options.sink_pipe_bytes : options.chunk;
    ends[0] = -1;
    switch (options.sink) {
    case SINK_NULL:
        ends[1] = open("/dev/null", O_WRONLY);
        break;
    case SINK_TCP:
        connect_tcp(ends);
        break;
    case SINK_UNIX:
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
            fail("socketpair");
        break;
    case SINK_PIPE:
        if (pipe(ends) || fcntl(ends[1], F_SETPIPE_SZ, pipe_bytes < 65536 ? 65536 : pipe_bytes) < 0)
            fail("pipe");
        break;
    case SINK_FILE:
    case SINK_FRESH:
        snprintf(directory, sizeof directory, "%s", options.file);
        if (file < 0)
            file = open(dirname(directory), O_TMPFILE | O_RDWR, 0600);
        ends[1] = file < 0 ? -1 : dup(file);
        if (options.sink == SINK_FRESH && ftruncate(file, 0))
            fail("ftruncate");
    }
    if (ends[1] < 0)
        fail("the sink");
}

static size_t receive_once(int from, char *buffer, const int pipes[2], int null)
{
    if (options.receiver == RECEIVE_TRUNC)
        return moved(recv(from, NULL, options.chunk, MSG_TRUNC), "recv");
    if (options.receiver == RECEIVE_READ)
        return moved(read(from, buffer, options.chunk), "read from the sink");
    if (options.sink == SINK_PIPE)
        return moved(splice(from, NULL, null, NULL, options.chunk, 0), "splice from the sink");
    size_t in = moved(splice(from, NULL, pipes[1], NULL, options.chunk, 0), "splice from the sink");
    for (size_t out = 0; out < in;)
        out += moved(splice(pipes[0], NULL, null, NULL, in - out, 0), "splice to /dev/null");
    return in;
}

/* Takes everything and says so with one byte: only then has the sender done its work. */
static void receive(int from, int ready, int done, uint64_t expected)
{
    char *buffer = aligned_alloc(4096, options.chunk);
    int pipes[2], null = open("/dev/null", O_WRONLY);
    if (!buffer || null < 0 || pipe(pipes) || fcntl(pipes[1], F_SETPIPE_SZ, options.chunk) < 0)
        fail("the receiver's things");
    memset(buffer, 1, options.chunk);
    if (write(ready, "r", 1) != 1)
        fail("ready");
    for (uint64_t got = 0; got < expected;)
        got += receive_once(from, buffer, pipes, null);
    if (write(done, "d", 1) != 1)
        fail("done");
    exit(0);
}

static void send_all(const struct method *method, struct relay *relay, int ready, int done,
                     int results)
{
    struct result result = { .valid = true };
    char byte;
    relay->buffer = aligned_alloc(4096, 4 << 20);
    if (!relay->buffer || pipe(relay->pipe))
        fail("the sender's things");
    memset(relay->buffer, 1, 4 << 20);
    if (method->prepare)
        method->prepare(relay);
    if (ready >= 0)
        moved(read(ready, &byte, 1), "the receiver's start");
    uint64_t start = now_ns();
    for (int i = 0; i < options.passes; i++) {
        if (relay->kind >= SINK_FILE && lseek(relay->sink, 0, SEEK_SET))
            fail("lseek");
        method->pass(relay);
    }
    if (ready >= 0)
        moved(read(done, &byte, 1), "the receiver's end");
    result.ns = now_ns() - start;
    result.notices = relay->notices;
    result.notices_copied = relay->notices_copied;
    if (write(results, &result, sizeof result) != sizeof result)
        fail("the result");
    exit(0);
}

static struct result measure(const struct method *method, size_t argument, size_t chunk)
{
    struct relay relay = { .source = open(options.file, O_RDONLY), .kind = options.sink,
                           .bytes = options.bytes, .chunk = chunk, .argument = argument };
    struct result result = { 0 };
    struct rusage usage[2] = { 0 };
    int ends[2], ready[2], done[2], results[2], status, failed = 0;
    pid_t children[2] = { 0 };
    if (relay.source < 0)
        fail(options.file);
    open_sink(ends);
    relay.sink = ends[1];
    if (pipe(ready) || pipe(done) || pipe(results))
        fail("pipe");
    bool receiving = ends[0] >= 0;
    if (receiving && !(children[1] = fork())) {
        begin_child(options.cpus[1]);
        close(ends[1]);
        receive(ends[0], ready[1], done[1], (uint64_t)options.bytes * options.passes);
    }
    if (!(children[0] = fork())) {
        begin_child(options.cpus[0]);
        close(ends[0]);
        close(done[1]);
        send_all(method, &relay, receiving ? ready[0] : -1, done[0], results[1]);
    }
    int all[] = { relay.source, ends[0], ends[1], ready[0],
                  ready[1],     done[0], done[1], results[1] };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] >= 0)
            close(all[i]);
    if (read(results[0], &result, sizeof result) != sizeof result)
        result.valid = false;
    close(results[0]);
    for (int i = 0; i <= receiving; i++) {
        if (children[i] < 0 || wait4(children[i], &status, 0, &usage[i]) < 0)
            fail("a child");
        failed |= status;
    }
    result.valid &= !failed;
    result.cpu_ns = cpu_ns(&usage[0]) + cpu_ns(&usage[1]);
    return result;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_range(const double *values, int digits)
{
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, options.rounds * sizeof *values);
    qsort(sorted, options.rounds, sizeof *sorted, by_value);
    double upper = sorted[options.rounds / 2], lower = sorted[(options.rounds - 1) / 2];
    printf("\t%.*f\t%.*f\t%.*f", digits, (upper + lower) / 2, digits, sorted[0], digits,
           sorted[options.rounds - 1]);
}

static void print(const char *name, struct result *results, struct result *base)
{
    double rates[ROUNDS_MAX], ratios[ROUNDS_MAX], costs[ROUNDS_MAX];
    double mib = (double)options.bytes * options.passes / 1048576;
    int cpus = options.cpus[0] < 0 ? -1 : options.cpus[0] != options.cpus[1];
    bool receiving = options.sink >= SINK_TCP && options.sink <= SINK_PIPE;
    printf("%s\t%s\t%s\t%s\t%zu\t%s", options.file, sinks[options.sink],
           receiving ? receivers[options.receiver] : "-",
           cpus < 0 ? "free" : cpus ? "two" : "one", options.chunk >> 10, name);
    for (int i = 0; i < options.rounds; i++) {
        if (!results[i].valid) {
            printf("\trefused\n");
            return;
        }
        rates[i] = mib * 1e9 / results[i].ns;
        ratios[i] = base[i].valid ? (double)base[i].ns / results[i].ns : 0;
        costs[i] = results[i].cpu_ns / 1e6 / mib * 1024;
    }
    print_range(rates, 0);
    print_range(ratios, 3);
    print_range(costs, 1);
    if (results[0].notices)
        printf("\tnotices %lu copied %lu", results[0].notices, results[0].notices_copied);
    printf("\n");
    fflush(stdout);
}

static void run(char **names, int count)
{
    static struct result results[METHODS_MAX][ROUNDS_MAX];
    const struct method *chosen[METHODS_MAX];
    size_t arguments[METHODS_MAX], chunks[METHODS_MAX];
    for (int i = 0; i < count; i++) {
        size_t length = strcspn(names[i], "=@");
        const char *chunk = strchr(names[i], '@');
        arguments[i] = names[i][length] == '=' ? size(names[i] + length + 1) : 0;
        chunks[i] = chunk ? size(chunk + 1) : options.chunk;
        if (chunks[i] < 4096 || chunks[i] > CHUNK_BYTES_MAX)
            index_of(names[i], NULL, 0);
        chosen[i] = NULL;
        for (const struct method *method = methods; method->name; method++)
            if (strlen(method->name) == length && !strncmp(method->name, names[i], length))
                chosen[i] = method;
        if (!chosen[i])
            index_of(names[i], NULL, 0);
    }
    if (options.sink == SINK_FILE)
        measure(&methods[0], 0, options.chunk); /* From here on the file has all its pages. */
    for (int round = 0; round < options.rounds; round++)
        for (int i = 0; i < count; i++) {
            int turn = (round + i) % count;
            results[turn][round] = measure(chosen[turn], arguments[turn], chunks[turn]);
        }
    for (int i = 0; i < count; i++)
        print(names[i], results[i], results[0]);
}

int main(int argc, char **argv)
{
    struct stat status;
    for (int option; (option = getopt(argc, argv, "f:k:r:b:P:l:n:c:")) != -1;)
        switch (option) {
        case 'f': options.file = optarg; break;
        case 'k': options.sink = index_of(optarg, sinks, 6); break;
        case 'r': options.receiver = index_of(optarg, receivers, 3); break;
        case 'b': options.chunk = size(optarg); break;
        case 'P': options.sink_pipe_bytes = size(optarg); break;
        case 'l': options.passes = atoi(optarg); break;
        case 'n': options.rounds = atoi(optarg); break;
        case 'c':
            if (sscanf(optarg, "%d,%d", &options.cpus[0], &options.cpus[1]) != 2)
                index_of(optarg, NULL, 0);
            break;
        default: return 2;
        }
    errno = EINVAL;
    if (!options.file || optind == argc || argc - optind > METHODS_MAX || options.rounds < 1 ||
        options.rounds > ROUNDS_MAX || options.chunk < 4096 || options.chunk > CHUNK_BYTES_MAX)
        fail("the arguments");
    if (stat(options.file, &status))
        fail(options.file);
    options.bytes = status.st_size;
    signal(SIGPIPE, SIG_IGN);
    run(argv + optind, argc - optind);
    return 0;
}
