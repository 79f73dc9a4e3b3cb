/* What the echo servers share: arguments, pinning, a bound socket, SIGTERM. */
#ifndef BERTH_BASELINE_ECHO_H
#define BERTH_BASELINE_ECHO_H

#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_FRAME 2048

static volatile sig_atomic_t stopped;

static void stop(int signal) {
    (void)signal;
    stopped = 1;
}

/* Pins this thread to the cpu and returns a non-blocking socket of the type on the loopback port, both of them arguments. */
static int start(int argc, char **argv, int type) {
    if (argc != 3)
        errx(2, "usage: %s PORT CPU (PORT 0 lets the kernel choose)", argv[0]);
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);

    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(atoi(argv[2]), &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus))
        err(1, "pinning to cpu %s", argv[2]);

    int fd = socket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof addr))
        err(1, "binding 127.0.0.1:%s", argv[1]);
    return fd;
}

/* Says on stdout that the socket can be reached, and at which port. */
static void ready(int fd) {
    struct sockaddr_in addr;
    socklen_t len = sizeof addr;
    if (getsockname(fd, (struct sockaddr *)&addr, &len))
        err(1, "getsockname");
    printf("ready %d\n", ntohs(addr.sin_port));
    fflush(stdout);
}

#endif
