/* The ways from a file into a sink that need plain system calls only, and MSG_ZEROCOPY. */
#define _GNU_SOURCE
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

void fail(const char *what)
{
    fprintf(stderr, "relay-probe: %s: %s\n", what, strerror(errno));
    exit(1);
}

ssize_t moved(ssize_t result, const char *what)
{
    if (result == 0)
        errno = ENODATA;
    if (result <= 0)
        fail(what);
    return result;
}

void write_all(int fd, const char *from, size_t bytes)
{
    while (bytes) {
        ssize_t written = moved(write(fd, from, bytes), "write");
        from += written;
        bytes -= written;
    }
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The argument is the size of the buffer, if it isn't to be the chunk. */
static void rw(struct relay *relay)
{
    size_t buffer_bytes = relay->argument ? relay->argument : relay->chunk;
    for (size_t done = 0; done < relay->bytes;) {
        size_t next = smaller(buffer_bytes, relay->bytes - done);
        size_t got = moved(pread(relay->source, relay->buffer, next, done), "read");
        write_all(relay->sink, relay->buffer, got);
        done += got;
    }
}

static char *map(struct relay *relay, int flags)
{
    char *mapping = mmap(NULL, relay->bytes, PROT_READ, MAP_SHARED | flags, relay->source, 0);
    if (mapping == MAP_FAILED)
        fail("mmap");
    return mapping;
}

static void map_write(struct relay *relay, int flags, int advice)
{
    char *mapping = map(relay, flags);
    for (size_t done = 0; done < relay->bytes;) {
        size_t next = smaller(relay->chunk, relay->bytes - done);
        if (advice && madvise(mapping + done, next, advice))
            fail("madvise");
        write_all(relay->sink, mapping + done, next);
        done += next;
    }
    if (munmap(mapping, relay->bytes))
        fail("munmap");
}

static void map_plain(struct relay *relay)
{
    map_write(relay, 0, 0);
}

static void map_populate(struct relay *relay)
{
    map_write(relay, MAP_POPULATE, 0);
}

static void map_advise(struct relay *relay)
{
    map_write(relay, 0, MADV_POPULATE_READ);
}

/* The argument is the size of the pipe, if it isn't to be the chunk. */
static void splice_prepare(struct relay *relay)
{
    size_t bytes = relay->argument ? relay->argument : relay->chunk;
    bytes = bytes < 65536 ? 65536 : bytes;
    if (fcntl(relay->pipe[1], F_SETPIPE_SZ, bytes) < 0)
        fail("F_SETPIPE_SZ");
}

/* The last part goes without SPLICE_F_MORE, or TCP would wait for what never comes. */
static void splice_by(struct relay *relay, unsigned more, bool direct)
{
    const int *pipe = relay->pipe;
    loff_t from = 0;
    while ((size_t)from < relay->bytes) {
        size_t next = smaller(relay->chunk, relay->bytes - from);
        if (direct) {
            moved(splice(relay->source, &from, relay->sink, NULL, next, more), "splice");
            continue;
        }
        size_t in = moved(splice(relay->source, &from, pipe[1], NULL, next, more), "splice in");
        unsigned flags = (size_t)from < relay->bytes ? more : 0;
        for (size_t out = 0; out < in;)
            out += moved(splice(pipe[0], NULL, relay->sink, NULL, in - out, flags), "splice out");
    }
}

static void splice_more(struct relay *relay)
{
    splice_by(relay, SPLICE_F_MORE, relay->kind == SINK_PIPE);
}

static void splice_plain(struct relay *relay)
{
    splice_by(relay, 0, relay->kind == SINK_PIPE);
}

/* Into a pipe through a pipe of our own, as the linked splices of uring.c do it. */
static void splice_via(struct relay *relay)
{
    splice_by(relay, 0, false);
}

static void send_file_by(struct relay *relay, size_t chunk)
{
    off_t from = 0;
    while ((size_t)from < relay->bytes) {
        size_t next = smaller(chunk, relay->bytes - from);
        moved(sendfile(relay->sink, relay->source, &from, next), "sendfile");
    }
}

static void send_file(struct relay *relay)
{
    send_file_by(relay, relay->chunk);
}

static void send_file_whole(struct relay *relay)
{
    send_file_by(relay, relay->bytes);
}

static void copy_range_by(struct relay *relay, size_t chunk)
{
    off_t from = 0;
    while ((size_t)from < relay->bytes) {
        size_t next = smaller(chunk, relay->bytes - from);
        moved(copy_file_range(relay->source, &from, relay->sink, NULL, next, 0), "copy_file_range");
    }
}

static void copy_range(struct relay *relay)
{
    copy_range_by(relay, relay->chunk);
}

static void copy_range_whole(struct relay *relay)
{
    copy_range_by(relay, relay->bytes);
}

void zerocopy_prepare(struct relay *relay)
{
    int on = 1;
    if (setsockopt(relay->sink, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on))
        fail("SO_ZEROCOPY");
}

/* Takes one message off the error queue; returns how many sends it settles, 0 if there is none. */
static uint32_t reap(struct relay *relay)
{
    union {
        struct cmsghdr header;
        char space[256];
    } control;
    struct msghdr message = { .msg_control = &control, .msg_controllen = sizeof control };
    if (recvmsg(relay->sink, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
        if (errno != EAGAIN)
            fail("the error queue");
        return 0;
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    struct sock_extended_err error;
    if (!header || header->cmsg_level != SOL_IP || header->cmsg_type != IP_RECVERR)
        fail("a message without IP_RECVERR");
    memcpy(&error, CMSG_DATA(header), sizeof error);
    if (error.ee_errno || error.ee_origin != SO_EE_ORIGIN_ZEROCOPY)
        fail("a message that isn't of MSG_ZEROCOPY");
    uint32_t settled = error.ee_data - error.ee_info + 1;
    relay->notices += settled;
    if (error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED)
        relay->notices_copied += settled;
    return settled;
}

static uint32_t reap_waiting(struct relay *relay)
{
    struct pollfd wait = { .fd = relay->sink };
    if (poll(&wait, 1, 10000) != 1)
        fail("no notice of MSG_ZEROCOPY for ten seconds");
    return reap(relay);
}

void zerocopy(struct relay *relay)
{
    uint32_t pending = 0;
    char *mapping = map(relay, 0);
    for (size_t done = 0; done < relay->bytes;) {
        size_t next = smaller(relay->chunk, relay->bytes - done);
        ssize_t sent = send(relay->sink, mapping + done, next, MSG_ZEROCOPY);
        if (sent < 0 && errno == ENOBUFS && pending) {
            pending -= reap_waiting(relay);
            continue;
        }
        done += moved(sent, "send with MSG_ZEROCOPY");
        pending++;
        for (uint32_t settled; (settled = reap(relay));)
            pending -= settled;
    }
    while (pending)
        pending -= reap_waiting(relay);
    if (munmap(mapping, relay->bytes))
        fail("munmap");
}

const struct method methods[] = {
    { "rw", NULL, rw },
    { "mmap", NULL, map_plain },
    { "mmap-populate", NULL, map_populate },
    { "mmap-advise", NULL, map_advise },
    { "splice", splice_prepare, splice_more },
    { "splice-plain", splice_prepare, splice_plain },
    { "splice-via", splice_prepare, splice_via },
    { "sendfile", NULL, send_file },
    { "sendfile-whole", NULL, send_file_whole },
    { "cfr", NULL, copy_range },
    { "cfr-whole", NULL, copy_range_whole },
    { "zerocopy", zerocopy_prepare, zerocopy },
    { "uring", uring_prepare, uring_copy },
    { "uring-poll", uring_poll_prepare, uring_copy },
    { "uring-splice", uring_prepare, uring_splice },
    { NULL, NULL, NULL },
};
