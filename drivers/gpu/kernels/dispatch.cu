// The dispatcher that never stops: polls rings, calls device functions, publishes their answers.
//
// A ring has `blocks` thread blocks; block k of it serves slots k, k + blocks, and so on. The first warp polls 32 flags at
// a time. What a request says is looked at in a copy, since its sender may write to the slot at any time.
#include "../../../dataplane/ptx/tests/kernels/cuda.h"

typedef unsigned char u8;
typedef u32 quad __attribute__((ext_vector_type(4)));
typedef int (*handler)(const void *in, void *out, u32 arg_len, u32 max_result_len, u32 *result_len);

// As drivers/gpu/src/dispatch.rs lays it out. `posted`: requests lie in memory of the device, which the host does not read: it
// fills a slot again once it has the answer. A flag may also be the address of a request in `elsewhere` bytes from `base` on, at a
// multiple of 4, with a stride's bytes behind it.
struct ring {
    u64 *rx_flags, *tx_flags;
    u8 *rx_data, *tx_data;
    u64 stride;
    u32 slots, slot_size, header, posted;
    u64 base, elsewhere;
};

// What a function takes: `fixed` bytes, and with `unit` any number of its multiples more.
struct function {
    u32 id, flags, fixed, unit;
};

// Of a function: all threads of the block call it; it may answer negative statuses, which are the dispatcher's else; it is called
// with an `arg_len` beyond the slot too, to refuse it by itself.
enum { PARALLEL = 1, BUILT_IN = 2, CHECKS_LENGTH = 4 };

// Made for each configuration (drivers/gpu/src/functions.rs).
extern "C" __device__ handler berth_handlers[];
extern "C" __device__ struct function berth_functions[];
extern "C" __device__ u32 berth_count;

enum { RUN, DRAIN, LEAVE };
enum { REQUEST = 0x43555152, RESPONSE = 0x43555153 };
enum { UNKNOWN_FUNCTION = -1, BAD_LENGTH = -2, SCHEMA_MISMATCH = -3, RESULT_TOO_LARGE = -4, HANDLER_FAILED = -6 };
// In the low bits of an error flag.
enum { BAD_FLAG = 2, SLOT_REUSED = 3 };

// Flags of a window, its first slot, and what thread 0 tells the others.
static __shared__ u64 flags[32];
static __shared__ u32 window, window_mask, word, chosen;
static __shared__ int status;
static __shared__ u32 result_len;
// The request, then the answer: a stride each.
extern __shared__ quad slots[];

static __device__ u64 acquire(const u64 *flag) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
    return value;
}

static __device__ u32 acquire_word(const u32 *at) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

static __device__ void release(u64 *flag, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(flag), "l"(value) : "memory");
}

static __device__ void fence() { asm volatile("fence.acq_rel.sys;" : : : "memory"); }

static __device__ u64 now() {
    u64 value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

static __device__ void nap(u32 nanoseconds) { asm volatile("nanosleep.u32 %0;" : : "r"(nanoseconds)); }

// Looks at 32 slots of this block from number `from` on; which of them have requests.
static __device__ u32 look(const struct ring *ring, u32 first, u32 step, u32 own, u32 from) {
    u64 flag = 0;
    if (TID_X < own) {
        u32 at = from + TID_X;
        at = at < own ? at : at - own;
        flag = acquire(ring->rx_flags + at * step + first);
        flags[TID_X] = flag;
    }
    return __nvvm_vote_ballot_sync(0xffffffff, flag != 0);
}

static __device__ void copy(quad *to, const quad *from, u32 begin, u32 end) {
    for (u32 at = begin + TID_X; at < end; at += NTID_X)
        to[at] = from[at];
}

// The same from any multiple of 4 bytes.
static __device__ void copy_words(quad *to, u64 from, u32 begin, u32 end) {
    for (u32 at = 4 * begin + TID_X; at < 4 * end; at += NTID_X)
        ((u32 *)to)[at] = ((const u32 *)from)[at];
}

// Finds the function of a request that is to have `arg_len` bytes; a negative status if it cannot be called.
static __device__ int find(u32 id, u32 arg_len) {
    for (u32 at = 0; at < berth_count; at++) {
        const struct function *function = &berth_functions[at];
        if (function->id != id)
            continue;
        u32 more = arg_len - function->fixed;
        int fits = function->unit ? arg_len >= function->fixed && more % function->unit == 0 : more == 0;
        return fits ? (int)at : SCHEMA_MISMATCH;
    }
    return UNKNOWN_FUNCTION;
}

// What is told of a call.
static __device__ int outcome(int returned, u32 len, u32 room, u32 flags) {
    if (returned == 0 && len > room)
        return RESULT_TOO_LARGE;
    return returned < 0 && !(flags & BUILT_IN) ? HANDLER_FAILED : returned;
}

// Serves one slot; all threads of the block take part.
static __device__ void serve(const struct ring *ring, u32 slot, u64 flag) {
    u64 offset = slot * ring->stride;
    const quad *rx = (const quad *)(ring->rx_data + offset);
    u32 in_place = flag != (u64)rx;
    quad *tx = (quad *)(ring->tx_data + offset);
    quad *in = slots, *out = slots + ring->stride / 16;
    u32 *request = (u32 *)in, *answer = (u32 *)out;
    u64 published = (u64)tx;
    if (in_place && (flag % 4 || flag < ring->base || flag - ring->base >= ring->elsewhere)) {
        published = 0xDEADull << 48 | BAD_FLAG;
    } else {
        // One line has the header and the arguments of most requests.
        u32 line = ring->stride < 64 ? ring->stride / 16 : 4;
        in_place ? copy_words(in, flag, 0, line) : copy(in, rx, 0, line);
        SYNC();
        u32 arg_len = request[2], room = ring->slot_size - ring->header;
        u32 fits = arg_len <= room;
        if (fits && arg_len + ring->header > 64) {
            u32 end = (ring->header + arg_len + 15) / 16;
            in_place ? copy_words(in, flag, 4, end) : copy(in, rx, 4, end);
            SYNC();
        }
        if (request[0] != REQUEST) {
            published = 0xDEADull << 48 | SLOT_REUSED;
        } else {
            void *args = (u8 *)in + ring->header, *results = (u8 *)out + ring->header;
            if (TID_X == 0) {
                int found = find(request[1], arg_len);
                u32 flags = found < 0 ? 0 : berth_functions[found].flags;
                if (!fits && !(flags & CHECKS_LENGTH))
                    found = BAD_LENGTH;
                result_len = chosen = 0;
                status = found;
                if (found >= 0 && flags & PARALLEL) {
                    chosen = found + 1;
                } else if (found >= 0) {
                    int returned = berth_handlers[found](args, results, arg_len, room, &result_len);
                    status = outcome(returned, result_len, room, flags);
                }
            }
            SYNC();
            if (chosen) {
                u32 len = 0;
                int returned = berth_handlers[chosen - 1](args, results, arg_len, room, &len);
                if (TID_X == 0) {
                    status = outcome(returned, len, room, berth_functions[chosen - 1].flags);
                    result_len = len;
                }
                SYNC();
            }
            u32 len = status == 0 ? result_len : 0;
            if (TID_X == 0) {
                answer[0] = RESPONSE;
                answer[1] = status;
                answer[2] = len;
                answer[3] = request[3];
                if (ring->header > 16) {
                    answer[4] = request[4];
                    answer[5] = request[5];
                }
            }
            SYNC();
            copy(tx, out, 0, (ring->header + len + 15) / 16);
        }
    }
    fence();
    SYNC();
    if (TID_X == 0) {
        if (ring->posted)
            release(ring->rx_flags + slot, 0);
        release(ring->tx_flags + slot, published);
        if (!ring->posted)
            release(ring->rx_flags + slot, 0);
    }
}

// Thread 0 tells that its block goes on, about each millisecond, and looks whether it is to stop.
static __device__ void beat(u64 time, u64 *last, u64 *beaten, u64 *beats, const u32 *stop) {
    if (time - *last >= 1000000) {
        *last = time;
        release(beats + 8 * CTAID_X, ++*beaten);
        word = acquire_word(stop);
    }
}

// `stop`: 0 run, 1 serve what is there and leave, 2 leave. `beats`: a counter each 64 bytes, of each block, which goes up
// about each millisecond. Without requests for `idle_after` nanoseconds it sleeps for `idle` at a time, after a
// hundred times as long for 20 times `idle`.
extern "C" __global__ void berth_dispatch(const struct ring *rings, u32 blocks, const u32 *stop, u64 *beats, u64 idle_after,
                                          u32 idle) {
    const struct ring ring = rings[CTAID_X / blocks];
    u32 first = CTAID_X % blocks, own = ring.slots / blocks;
    u32 cursor = 0, ahead = 0, polls = 0, empty = 0, state = RUN;
    u64 last_beat = 0, beaten = 0, busy = now();
    if (TID_X == 0)
        word = RUN;
    SYNC();
    for (;;) {
        if (TID_X < 32) {
            u32 mask = look(&ring, first, blocks, own, cursor);
            // Requests may lie elsewhere: a dispatcher before this one left off anywhere.
            if (mask == 0 && (++polls % 16 == 0 || state == DRAIN)) {
                ahead = ahead + 32 < own ? ahead + 32 : 0;
                u32 far = look(&ring, first, blocks, own, ahead);
                empty = far ? 0 : empty + 32;
                // They are filled in order, so those before it have come by now.
                mask = far ? look(&ring, first, blocks, own, cursor) : 0;
                if (far && mask == 0) {
                    mask = look(&ring, first, blocks, own, ahead);
                    cursor = ahead;
                }
            }
            empty = mask ? 0 : empty;
            if (TID_X == 0) {
                window = cursor;
                window_mask = mask;
                u64 time = now();
                beat(time, &last_beat, &beaten, beats, stop);
                if (state == DRAIN && empty > own + 32)
                    word = LEAVE;
                if (mask)
                    busy = time;
                else if (time - busy > idle_after)
                    nap(time - busy > 100 * idle_after ? 20 * idle : idle);
            }
        }
        SYNC();
        u32 ready = window_mask, last = 0;
        cursor = window;
        state = word;
        if (state == LEAVE)
            return;
        for (u32 mask = ready; mask; mask &= mask - 1) {
            last = __builtin_ctz(mask);
            u32 at = cursor + last;
            at = at < own ? at : at - own;
            serve(&ring, at * blocks + first, flags[last]);
            // A window of calls that take long is no silence.
            if (TID_X == 0)
                beat(now(), &last_beat, &beaten, beats, stop);
        }
        if (ready) {
            cursor += last + 1;
            cursor = cursor < own ? cursor : cursor - own;
        }
        SYNC();
    }
}
