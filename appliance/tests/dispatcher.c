/* Serves a shared ring of `berth run` in a process of its own, with nothing but berth_ring.h: adds one to each byte.
 * The first byte of a request says what to do wrong instead. usage: dispatcher FILE [immune | graphs]
 * With `graphs` it frees four requests at once, and answers them 10 ms later in the opposite order. */
#define _GNU_SOURCE
#include "berth_ring.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct rpc_header {
    uint32_t magic, code, len, request_id;
    uint64_t ptp_timestamp;
};

enum { HUGE_LENGTH = 0xF0, OTHER_REQUEST, NO_MAGIC, NO_ADDRESS, OTHER_SLOT, ERROR, NO_ANSWER, REFUSAL, DEATH };

static uint64_t acquire(volatile uint64_t *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
static void release(volatile uint64_t *flag, uint64_t value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }

int main(int argc, char **argv) {
    berth_shared_ring front;
    int fd = argc > 1 ? open(argv[1], O_RDWR) : -1;
    if (fd < 0) return perror("open"), 1;
    do {
        if (pread(fd, &front, sizeof front, 0) != sizeof front) return perror("pread"), 1;
    } while (front.magic != BERTH_SHARED_MAGIC);
    if (front.version != BERTH_SHARED_VERSION) return fputs("another version\n", stderr), 1;
    uint8_t *base = mmap((void *)front.base, front.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
    if (base != (uint8_t *)front.base) return perror("mmap"), 1;
    volatile uint64_t *rx_flags = (volatile uint64_t *)(base + front.rx_flags);
    volatile uint64_t *tx_flags = (volatile uint64_t *)(base + front.tx_flags);
    puts("attached");
    fflush(stdout);

    int graphs = argc > 2 && strcmp(argv[2], "graphs") == 0;
    for (uint32_t slot = 0; graphs; slot = 0) {
        uint64_t rx[4];
        for (; slot < 4; slot++) {
            while ((rx[slot] = acquire(&rx_flags[slot])) == BERTH_FLAG_FREE) sched_yield();
            release(&rx_flags[slot], BERTH_FLAG_FREE);
        }
        usleep(10000);
        while (slot-- > 0) {
            uint8_t *tx = base + front.tx_data + slot * front.stride;
            memcpy(tx, (const uint8_t *)rx[slot], front.slot_size);
            struct rpc_header *header = (struct rpc_header *)tx;
            for (uint32_t i = 0; i < header->len; i++) tx[sizeof *header + i]++;
            header->magic = 0x43555153;
            header->code = 0;
            release(&tx_flags[slot], (uint64_t)tx);
        }
    }

    for (uint32_t slot = 0;;) {
        uint64_t flag = acquire(&rx_flags[slot]);
        if (flag == BERTH_FLAG_FREE) {
            /* The first request from here on: where a dispatcher before this one left off is not known. */
            uint32_t next = (slot + 1) % front.slots;
            if (acquire(&rx_flags[next]) == BERTH_FLAG_FREE) sched_yield();
            slot = next;
            continue;
        }
        const uint8_t *rx = (const uint8_t *)flag;
        uint8_t *tx = base + front.tx_data + slot * front.stride;
        struct rpc_header header;
        memcpy(&header, rx, sizeof header);
        const uint8_t *in = rx + sizeof header;
        for (uint32_t i = 0; i < header.len; i++) tx[sizeof header + i] = (uint8_t)(in[i] + 1);
        header.magic = 0x43555153;
        header.code = 0;
        uint64_t answer = (uint64_t)tx;
        switch (header.len ? in[0] : 0) {
        case HUGE_LENGTH: header.len = UINT32_MAX; break;
        case OTHER_REQUEST: header.request_id++; break;
        case NO_MAGIC: header.magic = 0; break;
        case NO_ADDRESS: answer = 0x1234; break;
        case OTHER_SLOT: answer += front.stride; break;
        case ERROR: answer = BERTH_TX_ERROR(0x100); break;
        case NO_ANSWER: answer = BERTH_FLAG_FREE; break;
        case REFUSAL: header.code = (uint32_t)-5; break;
        case DEATH:
            if (argc == 2) abort();
        }
        memcpy(tx, &header, sizeof header);
        release(&tx_flags[slot], answer);
        release(&rx_flags[slot], BERTH_FLAG_FREE);
        slot = (slot + 1) % front.slots;
    }
}
