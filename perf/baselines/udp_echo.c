/* The baseline of the udp port: spin on a non-blocking recvfrom, answer with sendto.
 * Build: cc -O3 -o udp_echo udp_echo.c    Run: udp_echo PORT CPU */
#define _GNU_SOURCE
#include "echo.h"

int main(int argc, char **argv) {
    int fd = start(argc, argv, SOCK_DGRAM);
    ready(fd);
    static char frame[MAX_FRAME] __attribute__((aligned(64)));
    while (!stopped) {
        struct sockaddr_in peer;
        socklen_t peer_len = sizeof peer;
        ssize_t len = recvfrom(fd, frame, sizeof frame, 0, (struct sockaddr *)&peer, &peer_len);
        if (len >= 0)
            sendto(fd, frame, (size_t)len, 0, (struct sockaddr *)&peer, peer_len);
        else if (errno != EAGAIN && errno != EINTR)
            err(1, "recvfrom");
    }
    return 0;
}
