/* The baseline of NVMe/TCP: what a read of 4 KiB costs the socket and nothing else. Each 72 bytes that come are answered
 * with 4144, many at once where many have come; one connection at a time, spinning on a non-blocking recv. Ends with the
 * share of its time, from the first bytes to the last, that it had work.
 * Build: cc -O3 -o tcp_echo tcp_echo.c    Run: tcp_echo PORT CPU */
#define _GNU_SOURCE
#include "echo.h"

#include <netinet/tcp.h>
#include <time.h>

#define REQUEST 72
#define ANSWER 4144
/* Requests that are answered by one send at most. */
#define BURST 64

static char in[REQUEST * BURST], out[(size_t)ANSWER * BURST];
static double busy, first, last;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Sends all of it; 0 where the peer is gone. */
static int answer(int fd, size_t len) {
    for (size_t at = 0; at < len && !stopped;) {
        ssize_t sent = send(fd, out + at, len - at, MSG_NOSIGNAL);
        if (sent > 0)
            at += (size_t)sent;
        else if (errno != EAGAIN && errno != EINTR)
            return 0;
    }
    return 1;
}

static void serve(int fd) {
    size_t held = 0;
    double begun = now();
    while (!stopped) {
        ssize_t len = recv(fd, in, sizeof in - held, 0);
        if (len < 0 && (errno == EAGAIN || errno == EINTR)) {
            begun = now();
            continue;
        }
        if (len <= 0)
            return;
        held += (size_t)len;
        if (!answer(fd, held / REQUEST * ANSWER))
            return;
        held %= REQUEST;
        last = now();
        if (first == 0)
            first = begun;
        busy += last - begun;
        begun = last;
    }
}

int main(int argc, char **argv) {
    int listener = start(argc, argv, SOCK_STREAM), one = 1;
    if (listen(listener, 1))
        err(1, "listen");
    memset(out, 0x5A, sizeof out);
    ready(listener);
    while (!stopped) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && errno != EAGAIN && errno != EINTR)
            err(1, "accept");
        if (fd < 0)
            continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        serve(fd);
        close(fd);
    }
    printf("busy %.4f\n", last > first ? busy / (last - first) : 0.0);
    return 0;
}
