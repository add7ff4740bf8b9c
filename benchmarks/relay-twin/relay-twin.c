/*
 * The plain C twin of `shorthaul bench relay`: for each client one process that makes, in a
 * loop, the system calls of a method and nothing else, and for each client of a stream one
 * process that takes what comes.
 *
 *   gcc -std=c11 -O2 -Wall -Wextra -o relay-twin relay-twin.c
 *   relay-twin [-n clients] [-p port] [-l loops] [-t seconds] [-b chunk] [-c method,...]
 *              [-k null|tcp|unix|pipe|file] [-r trunc|read|splice] [-d directory]
 *              [-s] [-a] [-z] [-m] [file]
 *
 * Client i reads FILEi, or FILE0 with -s. A client stops after so many loops, or after the loop
 * in which its seconds ran out. The methods run one after the other, all clients of one at the
 * same time, each from a new connection.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS_MAX = 1024, METHODS_MAX = 8, PAGE = 4096, SPARE_SECONDS = 60 };
enum { PIPE_BYTES = 1 << 16, PIPE_BYTES_MAX = 1 << 20 };
enum { TRUNC_BYTES = 128 << 20 }; /* Nothing is copied, so one call may drop all that has come. */

enum sink { SINK_NULL, SINK_TCP, SINK_UNIX, SINK_PIPE, SINK_FILE };
enum receiver { RECEIVE_TRUNC, RECEIVE_READ, RECEIVE_SPLICE };

struct relay {
    int source, sink;
    size_t bytes; /* of one pass over the source */
    char *buffer; /* for rw alone */
    int pipe[2];  /* for splice alone */
};

struct method {
    const char *name;
    void (*pass)(const struct relay *);
};

struct result {
    uint64_t ns, bytes;
    int client;
};

static const char *const sinks[] = { "null", "tcp", "unix", "pipe", "file", NULL };
static const char *const receivers[] = { "trunc", "read", "splice", NULL };

static struct {
    int clients, port, loops, seconds, sink;
    int receiver; /* -1 until the sink is known */
    size_t chunk;
    bool same_file, pin, malloced;
    const char *methods, *directory, *file;
} options = { .clients = 8, .port = 8888, .loops = 10, .seconds = 15, .sink = SINK_TCP,
              .receiver = -1, .chunk = 65536, .methods = "splice,mmap,rw", .directory = ".",
              .file = "splice-file" };

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "relay-twin: %s: %s\n", what, strerror(errno));
    exit(1);
}

static _Noreturn void refuse(const char *what, const char *why)
{
    fprintf(stderr, "relay-twin: %s: %s\n", what, why);
    exit(2);
}

/* For calls that must have moved something: a source that has become shorter is a failure too. */
static size_t moved(ssize_t result, const char *what)
{
    if (result == 0)
        errno = ENODATA;
    if (result <= 0)
        fail(what);
    return result;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static uint64_t now_ns(void)
{
    struct timespec time;
    if (clock_gettime(CLOCK_MONOTONIC, &time))
        fail("clock_gettime");
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* ---- the methods ---- */

static void write_all(int fd, const char *from, size_t bytes)
{
    while (bytes) {
        size_t written = moved(write(fd, from, bytes), "write");
        from += written;
        bytes -= written;
    }
}

static void pass_rw(const struct relay *relay)
{
    if (lseek(relay->source, 0, SEEK_SET))
        fail("lseek of the source");
    for (size_t left = relay->bytes; left;) {
        size_t next = smaller(options.chunk, left);
        size_t got = moved(read(relay->source, relay->buffer, next), "read");
        write_all(relay->sink, relay->buffer, got);
        left -= got;
    }
}

static void pass_mmap(const struct relay *relay)
{
    char *mapping = mmap(NULL, relay->bytes, PROT_READ, MAP_SHARED, relay->source, 0);
    if (mapping == MAP_FAILED)
        fail("mmap");
    for (size_t done = 0; done < relay->bytes; done += options.chunk)
        write_all(relay->sink, mapping + done, smaller(options.chunk, relay->bytes - done));
    if (munmap(mapping, relay->bytes))
        fail("munmap");
}

/* The last chunk goes without SPLICE_F_MORE: TCP would hold it back and wait for more. */
static void pass_splice(const struct relay *relay)
{
    loff_t at = 0;
    while ((size_t)at < relay->bytes) {
        size_t next = smaller(options.chunk, relay->bytes - at);
        if (options.sink == SINK_PIPE) {
            moved(splice(relay->source, &at, relay->sink, NULL, next, 0), "splice");
            continue;
        }
        size_t held = moved(splice(relay->source, &at, relay->pipe[1], NULL, next, 0), "splice in");
        unsigned flags = (size_t)at < relay->bytes ? SPLICE_F_MORE : 0;
        while (held)
            held -= moved(splice(relay->pipe[0], NULL, relay->sink, NULL, held, flags),
                          "splice out");
    }
}

static void pass_sendfile(const struct relay *relay)
{
    off_t at = 0;
    while ((size_t)at < relay->bytes)
        moved(sendfile(relay->sink, relay->source, &at, smaller(options.chunk, relay->bytes - at)),
              "sendfile");
}

static void pass_copy_file_range(const struct relay *relay)
{
    off_t at = 0;
    while ((size_t)at < relay->bytes)
        moved(copy_file_range(relay->source, &at, relay->sink, NULL,
                              smaller(options.chunk, relay->bytes - at), 0),
              "copy_file_range");
}

static const struct method all_methods[] = {
    { "splice", pass_splice },
    { "mmap", pass_mmap },
    { "rw", pass_rw },
    { "sendfile", pass_sendfile },
    { "copy_file_range", pass_copy_file_range },
    { NULL, NULL },
};

/* ---- the sinks ---- */

/* The parent connects both ends itself, so nobody has to wait for a server to come up. */
static void connect_tcp(int client, int ends[2])
{
    int on = 1, port = options.port ? options.port + client : 0;
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
        bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&address, &length))
        fail("listening on 127.0.0.1");
    ends[1] = socket(AF_INET, SOCK_STREAM, 0);
    if (ends[1] < 0 || connect(ends[1], (struct sockaddr *)&address, length))
        fail("connecting to 127.0.0.1");
    ends[0] = accept(listener, NULL, NULL);
    if (ends[0] < 0)
        fail("accept");
    close(listener);
}

/* A chunk, if everybody may have a pipe of that size; through a smaller one it goes in parts. */
static int pipe_bytes(void)
{
    return smaller(options.chunk > PIPE_BYTES ? options.chunk : PIPE_BYTES, PIPE_BYTES_MAX);
}

/* It has lost its name when the first byte is written, so nothing is left however this ends. */
static int temporary_file(void)
{
    char name[PAGE];
    snprintf(name, sizeof name, "%s/relay-twin-XXXXXX", options.directory);
    int file = mkstemp(name);
    if (file < 0 || unlink(name))
        fail(name);
    return file;
}

/* ends[0] is the receiver's, or -1 where nobody receives. */
static void open_sink(int client, int ends[2])
{
    ends[0] = -1;
    switch ((enum sink)options.sink) {
    case SINK_NULL:
        ends[1] = open("/dev/null", O_WRONLY);
        if (ends[1] < 0)
            fail("/dev/null");
        break;
    case SINK_TCP:
        connect_tcp(client, ends);
        break;
    case SINK_UNIX:
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
            fail("socketpair");
        break;
    case SINK_PIPE:
        if (pipe(ends) || fcntl(ends[1], F_SETPIPE_SZ, pipe_bytes()) < 0)
            fail("the pipe of the sink");
        break;
    case SINK_FILE:
        ends[1] = temporary_file();
    }
}

/* ---- the processes ---- */

static int gate[2], ready[2], results[2];
static pid_t parent, children[2 * CLIENTS_MAX];
static int children_count;

static void begin_child(int client)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL))
        fail("PR_SET_PDEATHSIG");
    if (getppid() != parent)
        exit(1); /* It was gone before the signal was asked for. */
    alarm(options.seconds + SPARE_SECONDS);
    close(gate[1]);
    close(ready[0]);
    close(results[0]);
    if (options.pin) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(client % sysconf(_SC_NPROCESSORS_ONLN), &set);
        if (sched_setaffinity(0, sizeof set, &set))
            fail("sched_setaffinity");
    }
}

/* Tells the parent that all is prepared, and returns when it opens the gate by closing it. */
static void wait_at_gate(void)
{
    char byte = 0;
    if (write(ready[1], &byte, 1) != 1 || close(ready[1]))
        fail("telling that all is prepared");
    if (read(gate[0], &byte, 1))
        fail("the gate");
}

static char *aligned_buffer(void)
{
    void *buffer;
    errno = posix_memalign(&buffer, PAGE, options.chunk);
    if (errno)
        fail("posix_memalign");
    return buffer;
}

/* Bytes of one call, 0 at the end. */
static size_t receive(int from, char *buffer, const int pipes[2], int null)
{
    ssize_t got;
    if (options.receiver == RECEIVE_TRUNC)
        got = recv(from, NULL, TRUNC_BYTES, MSG_TRUNC);
    else if (options.receiver == RECEIVE_READ)
        got = read(from, buffer, options.chunk);
    else if (options.sink == SINK_PIPE)
        got = splice(from, NULL, null, NULL, options.chunk, 0);
    else
        got = splice(from, NULL, pipes[1], NULL, options.chunk, 0);
    if (got < 0)
        fail("receiving");
    if (options.receiver == RECEIVE_SPLICE && options.sink != SINK_PIPE)
        for (size_t held = got; held;)
            held -= moved(splice(pipes[0], NULL, null, NULL, held, 0), "splice to /dev/null");
    return got;
}

static _Noreturn void be_receiver(int client, int from, int answer)
{
    uint64_t total = 0;
    int pipes[2], null = open("/dev/null", O_WRONLY);
    begin_child(client);
    close(results[1]);
    char *buffer = aligned_buffer();
    memset(buffer, 1, options.chunk);
    if (null < 0 || pipe(pipes) || fcntl(pipes[1], F_SETPIPE_SZ, pipe_bytes()) < 0)
        fail("the receiver's pipe");
    wait_at_gate();
    for (size_t got; (got = receive(from, buffer, pipes, null));)
        total += got;
    if (write(answer, &total, sizeof total) != sizeof total)
        fail("answering the client");
    exit(0);
}

static void open_source(int client, struct relay *relay)
{
    char name[PAGE];
    struct stat status;
    snprintf(name, sizeof name, "%s%d", options.file, options.same_file ? 0 : client);
    relay->source = open(name, O_RDONLY);
    if (relay->source < 0 || fstat(relay->source, &status))
        fail(name);
    relay->bytes = status.st_size;
    if (!relay->bytes)
        refuse(name, "is empty, so there is nothing to measure");
}

static void prepare(int client, struct relay *relay)
{
    open_source(client, relay);
    relay->buffer = options.malloced ? malloc(options.chunk) : aligned_buffer();
    if (!relay->buffer)
        fail("malloc");
    memset(relay->buffer, 1, options.chunk);
    if (pipe(relay->pipe) || fcntl(relay->pipe[1], F_SETPIPE_SZ, pipe_bytes()) < 0)
        fail("the pipe of splice");
}

static uint64_t relay_loops(const struct method *method, const struct relay *relay, uint64_t start)
{
    uint64_t bytes = 0;
    for (int loop = 0; loop < options.loops; loop++) {
        if (loop && now_ns() - start >= (uint64_t)options.seconds * 1000000000)
            break;
        if (options.sink == SINK_FILE && lseek(relay->sink, 0, SEEK_SET))
            fail("lseek of the sink");
        method->pass(relay);
        bytes += relay->bytes;
    }
    return bytes;
}

/*
 * The clock of a stream runs from the first byte until the receiver has said that it has got the
 * last one: what still lies in a socket's or pipe's buffer when the sender has done its part
 * isn't moved yet, and a sender that stopped its clock there would be paid for the size of that
 * buffer.
 */
static void hear_of_the_end(struct relay *relay, int answer, uint64_t bytes)
{
    uint64_t received;
    if (options.sink != SINK_PIPE && shutdown(relay->sink, SHUT_WR))
        fail("shutdown");
    if (close(relay->sink))
        fail("close of the sink");
    if (read(answer, &received, sizeof received) != sizeof received || received != bytes) {
        errno = EIO;
        fail("the receiver didn't get all of it");
    }
}

static _Noreturn void be_client(int client, const struct method *method, int sink, int answer)
{
    struct relay relay = { .sink = sink };
    struct result result = { .client = client };
    begin_child(client);
    prepare(client, &relay);
    wait_at_gate();
    uint64_t start = now_ns();
    result.bytes = relay_loops(method, &relay, start);
    if (answer >= 0)
        hear_of_the_end(&relay, answer, result.bytes);
    result.ns = now_ns() - start;
    if (write(results[1], &result, sizeof result) != sizeof result)
        fail("reporting to the parent");
    exit(0);
}

/* The parent keeps no end of the sink, nor does a later child: else nobody would see its end. */
static void start_client(int client, const struct method *method)
{
    int ends[2], answer[2] = { -1, -1 };
    open_sink(client, ends);
    bool receiving = ends[0] >= 0;
    if (receiving && pipe(answer))
        fail("pipe");
    pid_t receiver = receiving ? fork() : 1;
    if (receiver == 0) {
        close(ends[1]);
        close(answer[0]);
        be_receiver(client, ends[0], answer[1]);
    }
    pid_t sender = fork();
    if (sender == 0) {
        if (receiving) {
            close(ends[0]);
            close(answer[1]);
        }
        be_client(client, method, ends[1], answer[0]);
    }
    if (receiver < 0 || sender < 0)
        fail("fork");
    children[children_count++] = sender;
    close(ends[1]);
    if (receiving) {
        children[children_count++] = receiver;
        close(ends[0]);
        close(answer[0]);
        close(answer[1]);
    }
}

/*
 * Each child lets go of `ready` once it is prepared or has failed, so this ends. If one has
 * failed, the others must not begin: they are ended at the gate, and the one has said why.
 */
static void open_gate(void)
{
    char byte;
    int prepared = 0;
    close(gate[0]);
    close(ready[1]);
    close(results[1]);
    while (read(ready[0], &byte, 1) == 1)
        prepared++;
    if (prepared < children_count)
        for (int i = 0; i < children_count; i++)
            kill(children[i], SIGKILL);
    close(ready[0]);
    close(gate[1]);
}

static void print(const struct method *method, const struct result *result)
{
    double mib = result->bytes / 1048576.0;
    printf("Client%d (%s): %.2f MiB/sec (%" PRIu64 "MiB in %" PRIu64 " msecs)\n", result->client,
           method->name, mib * 1e9 / result->ns, result->bytes >> 20, result->ns / 1000000);
}

static void run(const struct method *method)
{
    static struct result all[CLIENTS_MAX];
    struct result result;
    int status, bad = 0, reported = 0;
    children_count = 0;
    if (pipe(gate) || pipe(ready) || pipe(results))
        fail("pipe");
    for (int client = 0; client < options.clients; client++)
        start_client(client, method);
    open_gate();
    for (; read(results[0], &result, sizeof result) == sizeof result; reported++)
        all[result.client] = result;
    close(results[0]);
    while (wait(&status) > 0)
        bad += status != 0;
    if (bad || reported != options.clients)
        refuse(method->name, "not all clients have done their work");
    for (int client = 0; client < options.clients; client++)
        print(method, &all[client]);
    fflush(stdout);
}

/* ---- the command line ---- */

static int number(const char *text, int least, int most)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || *end || end == text || value < least || value > most)
        refuse(text, "isn't a number that this flag can have");
    return value;
}

static int index_in(const char *const *names, const char *text)
{
    for (int i = 0; names[i]; i++)
        if (!strcmp(names[i], text))
            return i;
    refuse(text, "isn't a name that this flag knows");
}

static void parse(int argc, char **argv)
{
    for (int flag; (flag = getopt(argc, argv, "n:p:l:t:b:c:k:r:d:sazm")) != -1;)
        switch (flag) {
        case 'n': options.clients = number(optarg, 1, CLIENTS_MAX); break;
        case 'p': options.port = number(optarg, 0, 65535 - CLIENTS_MAX); break;
        case 'l': options.loops = number(optarg, 1, 1 << 30); break;
        case 't': options.seconds = number(optarg, 1, 1 << 20); break;
        case 'b': options.chunk = number(optarg, 1, 1 << 30); break;
        case 'c': options.methods = optarg; break;
        case 'k': options.sink = index_in(sinks, optarg); break;
        case 'r': options.receiver = index_in(receivers, optarg); break;
        case 'd': options.directory = optarg; break;
        case 's': options.same_file = true; break;
        case 'a': options.pin = true; break;
        case 'z': options.sink = SINK_NULL; break;
        case 'm': options.malloced = true; break;
        default: exit(2);
        }
    if (optind < argc)
        options.file = argv[optind++];
    if (optind < argc)
        refuse(argv[optind], "is one argument too many");
    if (options.receiver < 0)
        options.receiver = options.sink == SINK_TCP ? RECEIVE_TRUNC : RECEIVE_READ;
    bool copies = options.sink == SINK_UNIX || options.sink == SINK_PIPE;
    if (options.receiver == RECEIVE_TRUNC && copies)
        refuse("-r trunc", "only TCP drops without copying; take -r read or -r splice");
}

static int parse_methods(const struct method *chosen[METHODS_MAX])
{
    int count = 0;
    char *names = strdup(options.methods), *rest = names;
    if (!names)
        fail("strdup");
    for (char *name; (name = strsep(&rest, ","));) {
        const struct method *method = all_methods;
        while (method->name && strcmp(method->name, name))
            method++;
        if (!method->name || count == METHODS_MAX)
            refuse(name, "isn't a method: splice, mmap, rw, sendfile, copy_file_range");
        chosen[count++] = method;
    }
    free(names);
    return count;
}

int main(int argc, char **argv)
{
    const struct method *chosen[METHODS_MAX];
    parse(argc, argv);
    int count = parse_methods(chosen);
    parent = getpid();
    if (signal(SIGPIPE, SIG_IGN) == SIG_ERR)
        fail("signal");
    for (int i = 0; i < count; i++)
        run(chosen[i]);
    return 0;
}
