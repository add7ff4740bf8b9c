/* What the parts of relay-probe share: one relay, as a method sees it, and how failures end it. */
#ifndef PROBE_H
#define PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum sink { SINK_NULL, SINK_TCP, SINK_UNIX, SINK_PIPE, SINK_FILE, SINK_FRESH };

struct relay {
    int source, sink;
    enum sink kind;
    size_t bytes;      /* of one pass; the source begins at 0 */
    size_t chunk;
    size_t argument;   /* what follows `=` in the method's name, 0 if nothing does */
    char *buffer;      /* page-aligned and touched */
    int pipe[2];
    void *ring;
    uint64_t notices, notices_copied; /* of MSG_ZEROCOPY */
};

struct method {
    const char *name;
    void (*prepare)(struct relay *); /* outside the measured time */
    void (*pass)(struct relay *);
};

/* Says what could not be done and ends this process. */
_Noreturn void fail(const char *what);

/* Returns the result of a system call if it did something. */
ssize_t moved(ssize_t result, const char *what);

void write_all(int fd, const char *from, size_t bytes);

void uring_prepare(struct relay *relay);
void uring_poll_prepare(struct relay *relay);
void uring_copy(struct relay *relay);
void uring_splice(struct relay *relay);
void zerocopy_prepare(struct relay *relay);
void zerocopy(struct relay *relay);

#endif
