// Decoders as DEVICE_CALL functions: `lut` for one thread, relay belief propagation for all threads of a block; and the
// decoding server's three functions.
// src/gpu.rs lays the tables out, src/relay/mod.rs defines the arithmetic.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define TID __nvvm_read_ptx_sreg_tid_x()
#define THREADS __nvvm_read_ptx_sreg_ntid_x()
#define BLOCK __nvvm_read_ptx_sreg_ctaid_x()
#define BLOCKS __nvvm_read_ptx_sreg_nctaid_x()
#define SYNC() __syncthreads()

typedef unsigned char u8;
typedef short i16;
typedef int i32;
typedef unsigned int u32;
typedef unsigned long long u64;

// Statuses of answers.
enum { OK = 0, NO_SOLUTION = 1, MISMATCH = -3, TOO_LARGE = -4, FAILED = -6 };

// Arguments: detection events, a bit each, then their number. Whether they are those of `detectors` detectors.
static __device__ bool fits(const u8 *in, u32 len, u32 detectors) {
    u32 bytes = (detectors + 7) / 8;
    if (len != bytes + 4)
        return false;
    u32 count = in[bytes] | in[bytes + 1] << 8 | in[bytes + 2] << 16 | (u32)in[bytes + 3] << 24;
    return count == detectors && (detectors % 8 == 0 || in[bytes - 1] >> detectors % 8 == 0);
}

static __device__ void write_flips(u8 *out, u64 flips, u32 observables) {
    for (u32 i = 0; i < (observables + 7) / 8; i++)
        out[i] = flips >> 8 * i;
}

// Followed by `mask + 1` indices of records, from 1, and the records: a syndrome of `words` words, flips of 2.
struct lut {
    u32 detectors, observables, words, mask;
    u32 slots[];
};

static __device__ u32 word_of(const u8 *events, u32 bytes, u32 index) {
    u32 word = 0;
    for (u32 i = 0; i < 4 && 4 * index + i < bytes; i++)
        word |= (u32)events[4 * index + i] << 8 * i;
    return word;
}

static __device__ u64 lut_shot(const u8 *events, const lut *t) {
    u32 bytes = (t->detectors + 7) / 8, hash = 0x811c9dc5;
    for (u32 i = 0; i < t->words; i++) {
        hash = (hash ^ word_of(events, bytes, i)) * 0x9e3779b1;
        hash ^= hash >> 15;
    }
    const u32 *records = t->slots + t->mask + 1;
    for (u32 at = hash & t->mask; t->slots[at]; at = at + 1 & t->mask) {
        const u32 *record = records + (u64)(t->slots[at] - 1) * (t->words + 2);
        u32 i = 0;
        while (i < t->words && record[i] == word_of(events, bytes, i))
            i++;
        if (i == t->words)
            return record[i] | (u64)record[i + 1] << 32;
    }
    return 0;
}

extern "C" __device__ i32 berth_lut(const u8 *in, u8 *out, u32 len, u32 room, u32 *result_len, const lut *t) {
    if (!fits(in, len, t->detectors))
        return MISMATCH;
    u32 result = (t->observables + 7) / 8;
    if (result > room)
        return TOO_LARGE;
    write_flips(out, lut_shot(in, t), t->observables);
    *result_len = result;
    return OK;
}

// Offsets are in bytes from the beginning of this.
struct relay_bp {
    u32 detectors, observables, errors, edges, relays, legs, iterations;
    u32 detector_starts, edge_errors, error_starts, error_edges, priors, strengths, flips, certain_events, unused;
    u64 certain_flips;
};

// Most threads that work, and most relays.
enum { WORKERS = 256, RELAYS = 8, MESSAGE_MAX = 4095 };

static __device__ i32 clamp(i32 x, i32 least, i32 most) { return x < least ? least : x > most ? most : x; }
static __device__ i32 saturated(i32 x) { return clamp(x, -32768, 32767); }

// All threads of the block call it, 8 at least; the first one gets the answer. `state` has room for `errors + edges` times `relays` numbers.
static __device__ i32 relay_bp_shot(const u8 *events, u64 *answer, u32 *weight_of_answer, const relay_bp *t, i16 *state) {
    __shared__ u32 unsolved[2][RELAYS];
    __shared__ u32 weights[WORKERS];
    __shared__ u64 all_flips[WORKERS];
    const u8 *base = (const u8 *)t;
    const u32 *detector_starts = (const u32 *)(base + t->detector_starts);
    const u32 *edge_errors = (const u32 *)(base + t->edge_errors);
    const u32 *error_starts = (const u32 *)(base + t->error_starts);
    const u32 *error_edges = (const u32 *)(base + t->error_edges);
    const i16 *priors = (const i16 *)(base + t->priors);
    const i16 *strengths = (const i16 *)(base + t->strengths);
    const u64 *flips = (const u64 *)(base + t->flips);
    const u8 *certain_events = base + t->certain_events;

    // Each thread serves one relay: every `step`th error and detector of it, from `first` on.
    const u32 relays = t->relays, errors = t->errors, detectors = t->detectors;
    const u32 workers = THREADS < WORKERS ? THREADS : WORKERS, step = workers / relays;
    const u32 relay = TID % relays, first = TID / relays < step ? TID / relays : 0xffffffff;
    i16 *marginals = state + relay, *messages = state + errors * relays + relay;

    for (u32 error = first; error < errors; error += step)
        marginals[error * relays] = priors[error];
    u32 solved = 0;
    u32 best_weight = 0xffffffff;
    u64 best_flips = 0;
    for (u32 leg = 0; leg < t->legs && !solved; leg++) {
        for (u32 edge = first; edge < t->edges; edge += step)
            messages[edge * relays] = 0;
        SYNC();
        for (u32 iteration = 0; iteration < t->iterations && !solved; iteration++) {
            u32 *odd = unsolved[iteration & 1];
            if (TID < RELAYS)
                odd[TID] = 0;
            for (u32 error = first; error < errors; error += step) {
                i32 prior = priors[error], change = saturated(marginals[error * relays] - prior);
                change = saturated(change + change) * strengths[error * relays + relay] >> 16;
                i32 marginal = saturated(prior + change);
                for (u32 at = error_starts[error]; at < error_starts[error + 1]; at++)
                    marginal = saturated(marginal + messages[error_edges[at] * relays]);
                marginals[error * relays] = marginal;
            }
            SYNC();
            for (u32 detector = first; detector < detectors; detector += step) {
                u32 start = detector_starts[detector], end = detector_starts[detector + 1];
                u32 sign = (events[detector / 8] ^ certain_events[detector / 8]) >> detector % 8 & 1;
                u32 parity = sign;
                i32 least = MESSAGE_MAX, second = MESSAGE_MAX;
                for (u32 edge = start; edge < end; edge++) {
                    i32 marginal = marginals[edge_errors[edge] * relays];
                    i32 message = clamp(marginal - messages[edge * relays], -MESSAGE_MAX, MESSAGE_MAX);
                    messages[edge * relays] = message;
                    sign ^= message < 0;
                    parity ^= marginal <= 0;
                    i32 size = message < 0 ? -message : message, larger = size > least ? size : least;
                    second = second < larger ? second : larger;
                    least = least < size ? least : size;
                }
                if (parity)
                    odd[relay] = 1;
                for (u32 edge = start; edge < end; edge++) {
                    i32 message = messages[edge * relays], size = message < 0 ? -message : message;
                    i32 of_others = size == least ? second : least;
                    of_others -= of_others >> 4;
                    messages[edge * relays] = sign ^ (message < 0) ? -of_others : of_others;
                }
            }
            SYNC();
            for (u32 i = 0; i < relays; i++)
                solved |= !odd[i] << i;
        }
        strengths += errors * relays;
    }
    if (solved) {
        u32 weight = 0;
        u64 of_relay = 0;
        for (u32 error = first; error < errors; error += step)
            if (marginals[error * relays] <= 0) {
                weight += priors[error];
                of_relay ^= flips[error];
            }
        if (TID < workers) {
            weights[TID] = weight;
            all_flips[TID] = of_relay;
        }
        SYNC();
        for (u32 i = 0; i < relays && TID == 0; i++) {
            u32 sum = 0;
            u64 flipped = 0;
            for (u32 thread = i; thread < step * relays; thread += relays) {
                sum += weights[thread];
                flipped ^= all_flips[thread];
            }
            if (solved >> i & 1 && sum < best_weight) {
                best_weight = sum;
                best_flips = flipped;
            }
        }
    }
    *answer = best_flips ^ t->certain_flips;
    *weight_of_answer = best_weight;
    // Shared memory is the next shot's.
    SYNC();
    return solved ? OK : NO_SOLUTION;
}

extern "C" __device__ i32 berth_relay_bp(const u8 *in, u8 *out, u32 len, u32 room, u32 *result_len, const relay_bp *t,
                                         i16 *state) {
    if (!fits(in, len, t->detectors))
        return MISMATCH;
    u32 result = (t->observables + 7) / 8;
    if (result > room)
        return TOO_LARGE;
    if (THREADS < RELAYS)
        return FAILED;
    u64 flips;
    u32 weight;
    i32 status = relay_bp_shot(in, &flips, &weight, t, state);
    if (status == OK && TID == 0) {
        write_flips(out, flips, t->observables);
        *result_len = result;
    }
    return status;
}

// The decoding server: sessions of one client or ring, as dataplane/rpc/src/handlers/session.rs has them. A block serves
// all requests of its sessions, one after the other. Offsets are in bytes, from the beginning of `server`; of `session`
// from that of the block's memory.
struct decoder {
    u32 is_relay, tables, map, session;
};
struct server {
    u32 count, unused;
    decoder decoders[];
};
// Each detector is the parity of measurements: those from the end before its own on, or that of its number.
struct map {
    u32 measurements, detectors, is_identity, unused;
    u32 ends[];
};
// Measurements follow, events, and the memory of relay_bp, each at a multiple of 8.
struct session {
    u64 corrections;
    u32 state, buffered;
    u8 bytes[];
};

enum { NEW, COLLECTING, RESULT_READY, LATCHED };
enum { INVALID_DECODER = 1, BAD_REQUEST = 2, INTERNAL_ERROR = 3, NOT_READY = 4 };
enum : u64 { MAX_SYNDROMES = 1 << 20 };

// Not 0: another process, or a program before this one, had the sessions. They are gone, and so failed until a reset.
extern "C" __device__ u32 berth_sessions_lost;

static __device__ u32 padded(u32 bits) { return ((bits + 7) / 8 + 7) & ~7u; }

static __device__ u64 long_at(const u8 *at) {
    u64 value = 0;
    for (u32 i = 0; i < 8; i++)
        value |= (u64)at[i] << 8 * i;
    return value;
}

// The decoder that a request names; 0 and a status if there is none.
static __device__ const decoder *addressed(const u8 *in, u32 len, const server *s, i32 *status) {
    if (len < 8) {
        *status = BAD_REQUEST;
        return 0;
    }
    u64 id = long_at(in);
    *status = INVALID_DECODER;
    return id < s->count ? s->decoders + id : 0;
}

// The session of a decoder. One thread calls it first.
static __device__ session *opened(const decoder *d, u8 *memory) {
    session *at = (session *)(memory + d->session);
    if (at->state == NEW)
        at->state = berth_sessions_lost ? LATCHED : COLLECTING;
    return at;
}

static __device__ void discard(session *at, const map *m) {
    for (u32 i = 0; i < (m->measurements + 7) / 8; i++)
        at->bytes[i] = 0;
    at->buffered = 0;
}

// Appends measurements; unused bits behind them are ignored.
static __device__ void append(u8 *to, u32 at, const u8 *from, u32 bits) {
    for (u32 bit = 0; bit < bits; bit += 8) {
        u32 byte = from[bit / 8], here = (at + bit) / 8, shift = (at + bit) % 8, left = bits - bit;
        if (left < 8)
            byte &= (1 << left) - 1;
        to[here] |= byte << shift;
        if (byte << shift >> 8)
            to[here + 1] |= byte << shift >> 8;
    }
}

// Takes measurements in; whether a volume is complete. The session stays failed until it is done.
static __device__ bool ingest(session *at, const map *m, const u8 *bits, u32 count) {
    if (at->state == LATCHED)
        return false;
    at->state = LATCHED;
    if (count > m->measurements - at->buffered)
        return false;
    append(at->bytes, at->buffered, bits, count);
    at->buffered += count;
    if (at->buffered < m->measurements)
        at->state = COLLECTING;
    return at->buffered == m->measurements;
}

// All threads of the block call it, 8 at least.
extern "C" __device__ i32 berth_enqueue_syndromes(const u8 *in, u8 *out, u32 len, u32 room, u32 *result_len,
                                                  const server *s, u8 *memory) {
    // Else the compiler, which sees nobody else write it, reads it before the barrier.
    __shared__ volatile u32 is_complete;
    i32 status;
    const decoder *d = addressed(in, len, s, &status);
    if (!d)
        return status;
    const u8 *base = (const u8 *)s;
    const map *m = (const map *)(base + d->map);
    u64 count = len < 32 ? 0 : long_at(in + 24);
    bool is_bad = len > room || count == 0 || count > MAX_SYNDROMES || long_at(in + 16) != 0 || len - 32 < (count + 7) / 8;
    session *at = (session *)(memory + d->session);
    if (TID == 0) {
        opened(d, memory);
        if (is_bad)
            at->state = LATCHED;
        is_complete = !is_bad && ingest(at, m, in + 32, count);
    }
    SYNC();
    if (is_complete) {
        u8 *events = at->bytes + padded(m->measurements);
        const u32 *columns = m->ends + m->detectors;
        for (u32 byte = TID; byte < (m->detectors + 7) / 8; byte += THREADS) {
            u32 made = m->is_identity ? at->bytes[byte] : 0;
            for (u32 detector = 8 * byte; !m->is_identity && detector < m->detectors && detector < 8 * byte + 8; detector++) {
                u32 parity = 0;
                for (u32 i = detector ? m->ends[detector - 1] : 0; i < m->ends[detector]; i++)
                    parity ^= at->bytes[columns[i] / 8] >> columns[i] % 8;
                made |= (parity & 1) << detector % 8;
            }
            events[byte] = made;
        }
        SYNC();
        u64 flips = 0;
        i32 decoded = OK;
        if (d->is_relay) {
            u32 weight;
            i16 *state = (i16 *)(events + padded(m->detectors));
            decoded = relay_bp_shot(events, &flips, &weight, (const relay_bp *)(base + d->tables), state);
        } else if (TID == 0) {
            flips = lut_shot(events, (const lut *)(base + d->tables));
        }
        if (TID == 0 && decoded == OK) {
            at->corrections ^= flips;
            discard(at, m);
            at->state = RESULT_READY;
        }
    }
    // Shared memory is the next request's.
    SYNC();
    return is_bad ? BAD_REQUEST : OK;
}

extern "C" __device__ i32 berth_get_corrections(const u8 *in, u8 *out, u32 len, u32 room, u32 *result_len, const server *s,
                                                u8 *memory) {
    i32 status;
    const decoder *d = addressed(in, len, s, &status);
    if (!d)
        return status;
    // The tables of all algorithms begin so.
    u32 observables = ((const u32 *)((const u8 *)s + d->tables))[1], bytes = (observables + 7) / 8;
    if (len < 17 || len > room || (long long)long_at(in + 8) <= 0)
        return BAD_REQUEST;
    session *at = opened(d, memory);
    if (at->state == LATCHED)
        return INTERNAL_ERROR;
    if (long_at(in + 8) != observables)
        return BAD_REQUEST;
    if (at->state != RESULT_READY)
        return NOT_READY;
    if (bytes > room)
        return INTERNAL_ERROR;
    bool is_reset = in[16] != 0;
    write_flips(out, at->corrections, observables);
    *result_len = bytes;
    if (is_reset) {
        at->corrections = 0;
        at->state = COLLECTING;
    }
    return OK;
}

extern "C" __device__ i32 berth_reset_decoder(const u8 *in, u8 *out, u32 len, u32 room, u32 *result_len, const server *s,
                                              u8 *memory) {
    i32 status;
    const decoder *d = addressed(in, len, s, &status);
    if (!d)
        return status;
    if (len > room)
        return BAD_REQUEST;
    session *at = opened(d, memory);
    discard(at, (const map *)((const u8 *)s + d->map));
    at->corrections = 0;
    at->state = COLLECTING;
    return OK;
}

extern __shared__ i16 dynamic[];

// Decodes many shots, a block each at a time. `state` has room for each block; without it dynamic shared memory has.
// Weights are in fixed point. A shot without a solution flips nothing, and weighs 0.
extern "C" __global__ void berth_relay_bp_shots(const relay_bp *t, i16 *state, const u8 *events, u64 *flips,
                                                u32 *weights, i32 *statuses, u32 shots) {
    i16 *mine = state ? state + (u64)BLOCK * (t->errors + t->edges) * t->relays : dynamic;
    for (u32 shot = BLOCK; shot < shots; shot += BLOCKS) {
        u64 of_shot;
        u32 weight;
        i32 status = relay_bp_shot(events + (u64)shot * ((t->detectors + 7) / 8), &of_shot, &weight, t, mine);
        if (TID == 0) {
            flips[shot] = status == OK ? of_shot : 0;
            weights[shot] = status == OK ? weight : 0;
            statuses[shot] = status;
        }
    }
}
