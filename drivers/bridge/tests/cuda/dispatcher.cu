// A dispatcher as somebody writes it who knows the host API's page alone: a block goes from slot to slot, with volatile accesses and
// system fences. With `early` it frees a request before it has read it and answers later, as dispatchers that launch graphs do.
#ifdef __NVCC__
typedef unsigned int u32;
typedef unsigned long long u64;
#define TID_X threadIdx.x
#define SYNC() __syncthreads()
#define FENCE() __threadfence_system()
#else
#include "../../../../dataplane/ptx/tests/kernels/cuda.h"
#define FENCE() __nvvm_membar_sys()
#endif

typedef unsigned char u8;

struct header {
    u32 magic, code, len, request_id;
    u64 ptp_timestamp;
};

enum { REQUEST = 0x43555152, ANSWER = 0x43555153, RPC_INCREMENT = 0x191B6322 };
// What the block is to do: a flag is an address otherwise.
enum { WAIT, LEAVE };

extern "C" __global__ void dispatch(volatile u64 *rx_flags, volatile u64 *tx_flags, u8 *tx_data, u64 tx_stride, u32 slots,
                                    u32 slot_size, u32 early, volatile u32 *stop, volatile u64 *served) {
    // Volatile: some compilers think that nobody else writes what has no address.
    __shared__ volatile u64 flag;
    u64 count = 0;
    for (u32 slot = 0;; slot = slot + 1 == slots ? 0 : slot + 1) {
        do {
            SYNC();
            if (TID_X == 0) {
                flag = rx_flags[slot];
                if (flag == 0)
                    flag = *stop ? LEAVE : WAIT;
            }
            SYNC();
        } while (flag == WAIT);
        if (flag == LEAVE)
            break;
        FENCE();
        if (early && TID_X == 0)
            rx_flags[slot] = 0;
        volatile struct header *request = (volatile struct header *)flag;
        volatile u8 *arguments = (volatile u8 *)(request + 1);
        struct header *answer = (struct header *)(tx_data + slot * tx_stride);
        u8 *results = (u8 *)(answer + 1);
        u32 len = request->len, status = 0;
        if (request->magic != REQUEST || len > slot_size - sizeof(struct header))
            status = -2;
        else if (request->code != RPC_INCREMENT)
            status = -1;
        len = status ? 0 : len;
        for (u32 at = TID_X; at < len; at += 32)
            results[at] = arguments[at] + 1;
        if (TID_X == 0) {
            answer->magic = ANSWER;
            answer->code = status;
            answer->len = len;
            answer->request_id = request->request_id;
            answer->ptp_timestamp = request->ptp_timestamp;
        }
        FENCE();
        SYNC();
        count++;
        if (TID_X == 0) {
            tx_flags[slot] = (u64)answer;
            if (!early) {
                FENCE();
                rx_flags[slot] = 0;
            }
        }
    }
    if (TID_X == 0)
        *served = count;
}
