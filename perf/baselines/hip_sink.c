/* The baselines of HIP Remote: a server that takes requests and does nothing of what they ask. What wants a reply is
 * answered with success, 28 bytes; one connection at a time. The mode is
 *   walk   receive as much as there is, spinning, and go from header to header
 *   wait   the same, asleep while nothing comes
 *   habit  as the first worker of this protocol does it: receive a header, allocate, receive the payload, free; asleep
 * Ends with the share of its time, from the first bytes to the last, that it had work (1 where it slept).
 * Build: cc -O3 -o hip_sink hip_sink.c    Run: hip_sink PORT CPU MODE */
#define _GNU_SOURCE
#include "echo.h"

#include <netinet/tcp.h>
#include <stdint.h>
#include <time.h>

#define HEADER 24
#define ANSWER 28
#define NO_REPLY 8

struct __attribute__((packed)) header {
    uint32_t magic;
    uint16_t version, op;
    uint32_t id;
    uint64_t len;
    uint32_t flags;
};

struct __attribute__((packed)) answer {
    struct header header;
    int32_t error;
};

static char in[256 << 10];
static double busy, first, last;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* 0 where the peer is gone. */
static int reply(int fd, struct header to) {
    if (to.magic != 0x48495052)
        errx(1, "no header where one should be");
    if (to.flags & NO_REPLY)
        return 1;
    to.len = 4;
    to.flags = 1;
    struct answer answer = {.header = to};
    for (size_t at = 0; at < sizeof answer && !stopped;) {
        ssize_t sent = send(fd, (char *)&answer + at, sizeof answer - at, MSG_NOSIGNAL);
        if (sent > 0)
            at += (size_t)sent;
        else if (errno != EAGAIN && errno != EINTR)
            return 0;
    }
    return 1;
}

static void walk(int fd) {
    size_t held = 0;
    uint64_t skip = 0;
    double begun = now();
    while (!stopped) {
        ssize_t len = recv(fd, in + held, sizeof in - held, 0);
        if (len < 0 && (errno == EAGAIN || errno == EINTR)) {
            begun = now();
            continue;
        }
        if (len <= 0)
            return;
        held += (size_t)len;
        size_t at = 0;
        for (;;) {
            size_t over = held - at < skip ? held - at : (size_t)skip;
            at += over;
            skip -= over;
            struct header header;
            if (held - at < HEADER)
                break;
            memcpy(&header, in + at, HEADER);
            at += HEADER;
            skip = header.len;
            /* What wants a reply has all come before it is answered. */
            if (!(header.flags & NO_REPLY) && held - at < skip && skip < sizeof in / 2) {
                at -= HEADER;
                skip = 0;
                break;
            }
            if (!reply(fd, header))
                return;
        }
        memmove(in, in + at, held - at);
        held -= at;
        last = now();
        if (first == 0)
            first = begun;
        busy += last - begun;
        begun = last;
    }
}

/* 0 where the peer is gone. */
static int all(int fd, void *to, uint64_t len) {
    for (uint64_t at = 0; at < len;) {
        ssize_t got = recv(fd, (char *)to + at, len - at, 0);
        if (got <= 0)
            return 0;
        at += (uint64_t)got;
    }
    return 1;
}

static void habit(int fd) {
    struct header header;
    while (!stopped && all(fd, &header, HEADER)) {
        void *payload = malloc(header.len ? header.len : 1);
        int served = payload && all(fd, payload, header.len) && reply(fd, header);
        free(payload);
        if (!served)
            return;
    }
}

int main(int argc, char **argv) {
    if (argc != 4)
        errx(2, "usage: %s PORT CPU walk|wait|habit", argv[0]);
    int spins = !strcmp(argv[3], "walk"), habitual = !strcmp(argv[3], "habit");
    int listener = start(3, argv, SOCK_STREAM), one = 1;
    if (listen(listener, 1))
        err(1, "listen");
    ready(listener);
    while (!stopped) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | (spins ? SOCK_NONBLOCK : 0));
        if (fd < 0 && errno != EAGAIN && errno != EINTR)
            err(1, "accept");
        if (fd < 0)
            continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        (habitual ? habit : walk)(fd);
        close(fd);
    }
    printf("busy %.4f\n", spins && last > first ? busy / (last - first) : 1.0);
    return 0;
}
