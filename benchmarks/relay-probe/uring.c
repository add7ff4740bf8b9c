/*
 * The same relay by io_uring, without liburing: two to eight registered buffers, so that the
 * next chunk is read while one is sent; or pairs of linked splices.
 */
#define _GNU_SOURCE
#include "probe.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ENTRIES = 64, SLOTS_MAX = 8, PAIRS_MAX = 16, SEND = 1 << 8 };

struct ring {
    int fd;
    bool polled;           /* a thread of the kernel's takes the entries */
    unsigned unsubmitted;
    unsigned *sq_tail, *sq_flags, sq_mask, *cq_head, *cq_tail, cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
};

static void *map_ring(const struct ring *ring, size_t bytes, off_t what)
{
    int flags = MAP_SHARED | MAP_POPULATE;
    void *mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, ring->fd, what);
    if (mapping == MAP_FAILED)
        fail("mmap of the ring");
    return mapping;
}

static size_t slots(const struct relay *relay)
{
    size_t count = relay->argument ? relay->argument : 2;
    return count > SLOTS_MAX ? SLOTS_MAX : count;
}

static void set_up(struct relay *relay, unsigned flags)
{
    struct io_uring_params params = { .flags = flags, .sq_thread_idle = 100 };
    struct ring *ring = calloc(1, sizeof *ring);
    if (!ring || (ring->fd = syscall(SYS_io_uring_setup, ENTRIES, &params)) < 0)
        fail("io_uring_setup");
    size_t completions_end = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    size_t array_end = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    char *queue = map_ring(ring, completions_end > array_end ? completions_end : array_end, 0);
    ring->sqes = map_ring(ring, params.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
    ring->sq_tail = (unsigned *)(queue + params.sq_off.tail);
    ring->sq_flags = (unsigned *)(queue + params.sq_off.flags);
    ring->sq_mask = *(unsigned *)(queue + params.sq_off.ring_mask);
    ring->cq_head = (unsigned *)(queue + params.cq_off.head);
    ring->cq_tail = (unsigned *)(queue + params.cq_off.tail);
    ring->cq_mask = *(unsigned *)(queue + params.cq_off.ring_mask);
    ring->cqes = (struct io_uring_cqe *)(queue + params.cq_off.cqes);
    for (unsigned i = 0; i < params.sq_entries; i++)
        ((unsigned *)(queue + params.sq_off.array))[i] = i;
    ring->polled = flags & IORING_SETUP_SQPOLL;
    relay->ring = ring;
    relay->buffer = aligned_alloc(4096, SLOTS_MAX << 20);
    if (!relay->buffer)
        fail("buffers");
    memset(relay->buffer, 1, SLOTS_MAX << 20);
    struct iovec buffers = { relay->buffer, SLOTS_MAX << 20 };
    int files[] = { relay->source, relay->sink, relay->pipe[0], relay->pipe[1] };
    if (syscall(SYS_io_uring_register, ring->fd, IORING_REGISTER_BUFFERS, &buffers, 1) ||
        syscall(SYS_io_uring_register, ring->fd, IORING_REGISTER_FILES, files, 4))
        fail("io_uring_register");
    if (fcntl(relay->pipe[1], F_SETPIPE_SZ, 1 << 20) < 0)
        fail("F_SETPIPE_SZ");
}

void uring_prepare(struct relay *relay)
{
    set_up(relay, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
}

/* The kernel's thread inherits the sender's CPU: without a third CPU this isn't fair to it. */
void uring_poll_prepare(struct relay *relay)
{
    set_up(relay, IORING_SETUP_SQPOLL);
}

/* One caller puts in, and never more than the ring holds, so the tail is only this function's. */
static struct io_uring_sqe *put(struct ring *ring, unsigned operation, int file, uint64_t data)
{
    unsigned at = *ring->sq_tail + ring->unsubmitted++;
    struct io_uring_sqe *entry = &ring->sqes[at & ring->sq_mask];
    memset(entry, 0, sizeof *entry);
    entry->opcode = operation;
    entry->fd = file;
    entry->flags = IOSQE_FIXED_FILE;
    entry->user_data = data;
    return entry;
}

static void submit_and_wait(struct ring *ring, unsigned wait)
{
    unsigned count = ring->unsubmitted, flags = wait ? IORING_ENTER_GETEVENTS : 0;
    __atomic_store_n(ring->sq_tail, *ring->sq_tail + count, __ATOMIC_SEQ_CST);
    ring->unsubmitted = 0;
    if (ring->polled) {
        if (__atomic_load_n(ring->sq_flags, __ATOMIC_SEQ_CST) & IORING_SQ_NEED_WAKEUP)
            flags |= IORING_ENTER_SQ_WAKEUP;
        count = 0;
    }
    long submitted = syscall(SYS_io_uring_enter, ring->fd, count, wait, flags, NULL, 0);
    if (submitted < (long)count)
        fail("io_uring_enter");
}

static bool take(struct ring *ring, struct io_uring_cqe *into)
{
    unsigned head = *ring->cq_head;
    if (head == __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE))
        return false;
    *into = ring->cqes[head & ring->cq_mask];
    __atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
    return true;
}

static size_t completed(const struct io_uring_cqe *entry, const char *what)
{
    if (entry->res <= 0)
        errno = entry->res ? -entry->res : ENODATA;
    return moved(entry->res <= 0 ? -1 : entry->res, what);
}

struct slot {
    size_t bytes, sent;
    bool full;
};

static void put_send(struct relay *relay, size_t number, const struct slot *slot)
{
    bool socket = relay->kind == SINK_TCP || relay->kind == SINK_UNIX;
    unsigned operation = socket ? IORING_OP_SEND : IORING_OP_WRITE_FIXED;
    struct io_uring_sqe *entry = put(relay->ring, operation, 1, SEND | number);
    entry->addr = (uintptr_t)relay->buffer + number * relay->chunk + slot->sent;
    entry->len = slot->bytes - slot->sent;
    if (socket)
        entry->msg_flags = MSG_WAITALL; /* The kernel, not this loop, goes on after a part. */
    else
        entry->off = (uint64_t)-1; /* The sink's own position. */
}

/* One send at a time, as they must not overtake each other; reads go into all free slots. */
void uring_copy(struct relay *relay)
{
    struct slot slot[SLOTS_MAX] = { 0 };
    size_t count = slots(relay), begun = 0, ended = 0, next_read = 0, next_send = 0, pending = 0;
    bool sending = false;
    while (ended < relay->bytes) {
        for (; begun < relay->bytes && !slot[next_read % count].bytes; next_read++, pending++) {
            struct slot *into = &slot[next_read % count];
            into->bytes = relay->bytes - begun < relay->chunk ? relay->bytes - begun : relay->chunk;
            size_t number = next_read % count;
            struct io_uring_sqe *entry = put(relay->ring, IORING_OP_READ_FIXED, 0, number);
            entry->addr = (uintptr_t)relay->buffer + number * relay->chunk;
            entry->len = into->bytes;
            entry->off = begun;
            begun += into->bytes;
        }
        if (!sending && slot[next_send % count].full) {
            put_send(relay, next_send % count, &slot[next_send % count]);
            sending = true;
            pending++;
        }
        submit_and_wait(relay->ring, 1);
        for (struct io_uring_cqe entry; take(relay->ring, &entry); pending--) {
            struct slot *of = &slot[entry.user_data & (SEND - 1)];
            size_t bytes = completed(&entry, entry.user_data & SEND ? "send" : "read");
            if (!(entry.user_data & SEND)) {
                if (bytes != of->bytes)
                    fail("a short read, which a warm regular file doesn't give");
                of->full = true;
                continue;
            }
            sending = false;
            ended += bytes;
            of->sent += bytes;
            if (of->sent == of->bytes) {
                *of = (struct slot){ 0 };
                next_send++;
            }
        }
    }
}

static void put_splice(struct relay *relay, int from, uint64_t offset, int to, size_t bytes,
                       bool last)
{
    struct io_uring_sqe *entry = put(relay->ring, IORING_OP_SPLICE, to, to == 3);
    entry->splice_fd_in = from;
    entry->splice_off_in = offset;
    entry->off = (uint64_t)-1;
    entry->len = bytes;
    entry->splice_flags = SPLICE_F_FD_IN_FIXED;
    if (!last)
        entry->flags |= IOSQE_IO_LINK;
}

/*
 * Chains of linked pairs, file to pipe and pipe to sink; the argument is their number. A short
 * splice breaks its chain: then what the pipe holds goes out by splice(2), and the next chain
 * begins behind it.
 */
void uring_splice(struct relay *relay)
{
    size_t count = relay->argument ? relay->argument : 1, done = 0;
    while (done < relay->bytes) {
        size_t pairs = 0, in = 0, out = 0;
        for (size_t at = done; pairs < count && pairs < PAIRS_MAX && at < relay->bytes; pairs++) {
            size_t next = relay->bytes - at < relay->chunk ? relay->bytes - at : relay->chunk;
            at += next;
            put_splice(relay, 0, at - next, 3, next, false);
            put_splice(relay, 2, (uint64_t)-1, 1, next, pairs + 1 == count || at == relay->bytes);
        }
        submit_and_wait(relay->ring, 2 * pairs);
        for (size_t taken = 0; taken < 2 * pairs;) {
            struct io_uring_cqe entry;
            if (!take(relay->ring, &entry)) {
                submit_and_wait(relay->ring, 1);
                continue;
            }
            taken++;
            if (entry.res != -ECANCELED)
                *(entry.user_data ? &in : &out) += completed(&entry, "splice");
        }
        while (out < in)
            out += moved(splice(relay->pipe[0], NULL, relay->sink, NULL, in - out, 0),
                         "splice out");
        done += out;
    }
}
