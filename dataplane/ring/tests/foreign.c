/* The other side of a Berth ring, in C: what tests/foreign.rs loads. Uses nothing but the header. */
#include "berth_ring.h"

#include <stdlib.h>
#include <string.h>

#define RPC_MAGIC_REQUEST 0x43555152u
#define RPC_MAGIC_RESPONSE 0x43555153u

/* Request and response headers have the same fields at the same places; `code` is function_id or status. */
struct rpc_header {
    uint32_t magic, code, len, request_id;
    uint64_t ptp_timestamp;
};
BERTH_STATIC_ASSERT(sizeof(struct rpc_header) == 24, "the header has 24 bytes");

static uint64_t acquire(volatile uint64_t *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
static void release(volatile uint64_t *flag, uint64_t value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }

/* The HOST_CALL handler of the test: each payload byte plus one. */
static void increment(const void *rx_slot, void *tx_slot, size_t slot_size) {
    struct rpc_header header;
    memcpy(&header, rx_slot, sizeof header);
    header.magic = RPC_MAGIC_RESPONSE;
    header.code = 0;
    const uint8_t *in = (const uint8_t *)rx_slot + sizeof header;
    uint8_t *out = (uint8_t *)tx_slot + sizeof header;
    for (size_t i = 0; i < header.len && i + sizeof header < slot_size; i++) out[i] = (uint8_t)(in[i] + 1);
    memcpy(tx_slot, &header, sizeof header);
}

/* Answers `count` requests of a ring that Berth made. Each multiple of `error_every` gets an error flag. */
void foreign_dispatch(const berth_ringbuffer *ring, const berth_dispatcher_config *config, uint64_t count,
                      uint64_t error_every) {
    berth_host_call handler = increment;
    for (uint64_t n = 0; n < count; n++) {
        uint64_t slot = n % config->num_slots, rx;
        while ((rx = acquire(&ring->rx_flags[slot])) == BERTH_FLAG_FREE) {}
        uint8_t *tx = ring->tx_data + slot * ring->tx_stride;
        handler((const void *)(uintptr_t)rx, tx, config->slot_size);
        release(&ring->tx_flags[slot],
                error_every && n % error_every == 0 ? BERTH_TX_ERROR(0x100 + n) : (uint64_t)(uintptr_t)tx);
        release(&ring->rx_flags[slot], BERTH_FLAG_FREE);
    }
}

/* Allocates a ring; 0 on success. */
int foreign_ring_create(berth_ringbuffer *ring, uint32_t slots, size_t rx_stride, size_t tx_stride) {
    memset(ring, 0, sizeof *ring);
    ring->rx_flags = ring->rx_flags_host = (volatile uint64_t *)calloc(slots, sizeof(uint64_t));
    ring->tx_flags = ring->tx_flags_host = (volatile uint64_t *)calloc(slots, sizeof(uint64_t));
    ring->rx_data = ring->rx_data_host = (uint8_t *)calloc(slots, rx_stride);
    ring->tx_data = ring->tx_data_host = (uint8_t *)calloc(slots, tx_stride);
    ring->rx_stride = rx_stride;
    ring->tx_stride = tx_stride;
    return ring->rx_flags && ring->tx_flags && ring->rx_data && ring->tx_data ? 0 : -1;
}

void foreign_ring_destroy(berth_ringbuffer *ring) {
    free((void *)ring->rx_flags);
    free((void *)ring->tx_flags);
    free(ring->rx_data);
    free(ring->tx_data);
}

/* Sends `count` requests through the ring, up to `slots` at a time, and returns how many answers were right. */
uint64_t foreign_produce(const berth_ringbuffer *ring, uint32_t slots, uint64_t count) {
    uint64_t sent = 0, right = 0;
    for (uint64_t taken = 0; taken < count;) {
        uint64_t slot = sent % slots;
        if (sent < count && sent - taken < slots && acquire(&ring->rx_flags[slot]) == BERTH_FLAG_FREE) {
            struct rpc_header header = {RPC_MAGIC_REQUEST, 0x191B6322u, 8, (uint32_t)sent, ~sent};
            uint8_t *rx = ring->rx_data + slot * ring->rx_stride;
            memcpy(rx, &header, sizeof header);
            memcpy(rx + sizeof header, &sent, sizeof sent);
            release(&ring->rx_flags[slot], (uint64_t)(uintptr_t)rx);
            sent++;
        }
        slot = taken % slots;
        uint64_t tx = acquire(&ring->tx_flags[slot]);
        if (tx != BERTH_FLAG_FREE && tx != BERTH_TX_IN_FLIGHT) {
            struct rpc_header header;
            uint8_t request[8], answer[8], good = !BERTH_TX_IS_ERROR(tx);
            if (good) {
                memcpy(&header, (const void *)(uintptr_t)tx, sizeof header);
                memcpy(answer, (const uint8_t *)(uintptr_t)tx + sizeof header, sizeof answer);
                memcpy(request, &taken, sizeof request);
                good = header.magic == RPC_MAGIC_RESPONSE && header.code == 0 && header.len == 8 &&
                       header.request_id == (uint32_t)taken && header.ptp_timestamp == ~taken;
                for (int i = 0; i < 8; i++) good &= answer[i] == (uint8_t)(request[i] + 1);
            }
            right += good;
            release(&ring->tx_flags[slot], BERTH_FLAG_FREE);
            taken++;
        }
    }
    return right;
}
