/* The slot ring and function table of Berth, for C11 and C++17.
 *
 * The layouts and constants are those of the CUDA-Q Realtime host API (LP64, little-endian), so that a dispatcher
 * written against either serves the other's ring. The same layouts in Rust: berth_ring::abi.
 *
 * A ring is N request slots (rx) and N response slots (tx) with one 64-bit flag each. Slot i lies at
 * data + i * stride; a response lies in the tx slot of the same number as its request.
 *
 *   producer     waits until rx_flags[i] and tx_flags[i] are 0, writes rx slot i, stores the slot's address to
 *                rx_flags[i] (release), i = (i + 1) % N
 *   dispatcher   waits until rx_flags[i] is not 0 (acquire), writes tx slot i, stores that slot's address, or
 *                BERTH_TX_ERROR(code), to tx_flags[i] (release) and only then 0 to rx_flags[i] (release),
 *                i = (i + 1) % N. Every request gets a tx flag, or the slots behind it would stall.
 *   producer     waits until tx_flags[i] is a slot address or an error (acquire), reads tx slot i, stores 0
 */
#ifndef BERTH_RING_H
#define BERTH_RING_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define BERTH_STATIC_ASSERT(cond, text) static_assert(cond, text)
extern "C" {
#else
#define BERTH_STATIC_ASSERT(cond, text) _Static_assert(cond, text)
#endif

/* Slot flags. */
#define BERTH_FLAG_FREE UINT64_C(0)
#define BERTH_TX_IN_FLIGHT UINT64_C(0xEEEEEEEEEEEEEEEE)
#define BERTH_TX_ERROR_TAG UINT64_C(0xDEAD)
#define BERTH_TX_ERROR(code) ((BERTH_TX_ERROR_TAG << 48) | ((uint64_t)(code) & UINT64_C(0xFFFFFFFFFFFF)))
#define BERTH_TX_IS_ERROR(flag) (((flag) >> 48) == BERTH_TX_ERROR_TAG)
#define BERTH_TX_ERROR_CODE(flag) ((flag) & UINT64_C(0xFFFFFFFFFFFF))

/* Error codes that Berth's own dispatcher puts into a tx flag; codes from 0x100 on are the handler's. */
#define BERTH_TX_ERROR_UNWOUND 1     /* the handler panicked */
#define BERTH_TX_ERROR_BAD_FLAG 2    /* the rx flag was not the slot's address */
#define BERTH_TX_ERROR_SLOT_REUSED 3 /* the request was overwritten while it was dispatched */
#define BERTH_TX_ERROR_SKIPPED 4     /* the request never came */

/* berth_dispatcher_config.kernel_type */
enum { BERTH_KERNEL_REGULAR = 0, BERTH_KERNEL_COOPERATIVE = 1, BERTH_KERNEL_UNIFIED = 2 };
/* dispatch_mode of a function entry and of the configuration */
enum { BERTH_DISPATCH_DEVICE_CALL = 0, BERTH_DISPATCH_GRAPH_LAUNCH = 1, BERTH_DISPATCH_HOST_CALL = 2 };
/* berth_dispatcher_config.dispatch_path */
enum { BERTH_PATH_DEVICE = 0, BERTH_PATH_HOST = 1 };

#define BERTH_MAX_ARGS 8
#define BERTH_MAX_RESULTS 4

/* HOST_CALL: reads the request slot, writes the whole response, header included. */
typedef void (*berth_host_call)(const void *rx_slot, void *tx_slot, size_t slot_size);

/* DEVICE_CALL: reads arg_len payload bytes, writes at most max_result_len and stores how many. Returns the status;
 * the dispatcher writes the response header. */
typedef int (*berth_device_call)(const void *input, void *output, uint32_t arg_len, uint32_t max_result_len,
                                 uint32_t *result_len);

typedef struct berth_type_desc {
    uint8_t type_id;
    uint8_t reserved[3];
    uint32_t size_bytes;   /* of the whole value */
    uint32_t num_elements; /* scalars: 1, arrays: elements, bit-packed: bits */
} berth_type_desc;

typedef struct berth_handler_schema {
    uint8_t num_args;
    uint8_t num_results;
    uint16_t reserved;
    berth_type_desc args[BERTH_MAX_ARGS];
    berth_type_desc results[BERTH_MAX_RESULTS];
} berth_handler_schema;

typedef struct berth_function_entry {
    union {
        berth_device_call device_call;
        berth_host_call host_call;
        void *graph;
    } handler;
    uint32_t function_id; /* FNV-1a 32 of the handler's name */
    uint8_t dispatch_mode;
    uint8_t reserved[3];
    berth_handler_schema schema;
    uint64_t routing_key;
} berth_function_entry;

typedef struct berth_function_table {
    berth_function_entry *entries;
    uint32_t count;
} berth_function_table;

typedef struct berth_dispatcher_config {
    uint32_t device_id;
    uint32_t num_blocks;
    uint32_t threads_per_block;
    uint32_t num_slots;
    uint32_t slot_size;
    uint32_t vp_id;
    uint32_t kernel_type;
    uint32_t dispatch_mode;
    uint32_t dispatch_path;
    uint32_t skip_tx_markers;
    uint32_t shared_ring_mode;
} berth_dispatcher_config;

/* The unsuffixed pointers are the dispatcher's view, the _host ones the host's view of the same memory. */
typedef struct berth_ringbuffer {
    volatile uint64_t *rx_flags;
    volatile uint64_t *tx_flags;
    uint8_t *rx_data;
    uint8_t *tx_data;
    size_t rx_stride;
    size_t tx_stride;
    volatile uint64_t *rx_flags_host;
    volatile uint64_t *tx_flags_host;
    uint8_t *rx_data_host;
    uint8_t *tx_data_host;
} berth_ringbuffer;

/* What a file of shared memory with a ring in it begins with. Offsets are from the file's first byte. `base` is the
 * address of that byte in the dispatcher's view: flags hold base + offset. Map the file there, or translate. */
#define BERTH_SHARED_MAGIC UINT64_C(0x474E524854524542) /* "BERTHRNG", written last */
#define BERTH_SHARED_VERSION 1
typedef struct berth_shared_ring {
    volatile uint64_t magic;
    uint32_t version;
    uint32_t slots;
    uint64_t slot_size;
    uint64_t stride;
    uint64_t size; /* of the file */
    uint64_t base;
    uint64_t rx_flags;
    uint64_t tx_flags;
    uint64_t rx_data;
    uint64_t tx_data;
} berth_shared_ring;

#define BERTH_AT(type, field, offset) \
    BERTH_STATIC_ASSERT(offsetof(type, field) == (offset), #type "." #field " must be at " #offset)
#define BERTH_SIZE(type, size) BERTH_STATIC_ASSERT(sizeof(type) == (size), #type " must have " #size " bytes")

BERTH_SIZE(berth_type_desc, 12);
BERTH_AT(berth_type_desc, type_id, 0);
BERTH_AT(berth_type_desc, size_bytes, 4);
BERTH_AT(berth_type_desc, num_elements, 8);

BERTH_SIZE(berth_handler_schema, 148);
BERTH_AT(berth_handler_schema, num_args, 0);
BERTH_AT(berth_handler_schema, num_results, 1);
BERTH_AT(berth_handler_schema, args, 4);
BERTH_AT(berth_handler_schema, results, 100);

BERTH_SIZE(berth_function_entry, 176);
BERTH_AT(berth_function_entry, handler, 0);
BERTH_AT(berth_function_entry, function_id, 8);
BERTH_AT(berth_function_entry, dispatch_mode, 12);
BERTH_AT(berth_function_entry, schema, 16);
BERTH_AT(berth_function_entry, routing_key, 168);

BERTH_SIZE(berth_function_table, 16);
BERTH_AT(berth_function_table, entries, 0);
BERTH_AT(berth_function_table, count, 8);

BERTH_SIZE(berth_dispatcher_config, 44);
BERTH_AT(berth_dispatcher_config, device_id, 0);
BERTH_AT(berth_dispatcher_config, num_slots, 12);
BERTH_AT(berth_dispatcher_config, kernel_type, 24);
BERTH_AT(berth_dispatcher_config, shared_ring_mode, 40);

BERTH_SIZE(berth_ringbuffer, 80);
BERTH_AT(berth_ringbuffer, rx_flags, 0);
BERTH_AT(berth_ringbuffer, tx_flags, 8);
BERTH_AT(berth_ringbuffer, rx_data, 16);
BERTH_AT(berth_ringbuffer, tx_data, 24);
BERTH_AT(berth_ringbuffer, rx_stride, 32);
BERTH_AT(berth_ringbuffer, tx_stride, 40);
BERTH_AT(berth_ringbuffer, rx_flags_host, 48);
BERTH_AT(berth_ringbuffer, tx_flags_host, 56);
BERTH_AT(berth_ringbuffer, rx_data_host, 64);
BERTH_AT(berth_ringbuffer, tx_data_host, 72);

BERTH_SIZE(berth_shared_ring, 80);
BERTH_AT(berth_shared_ring, version, 8);
BERTH_AT(berth_shared_ring, slot_size, 16);
BERTH_AT(berth_shared_ring, base, 40);
BERTH_AT(berth_shared_ring, tx_data, 72);

#undef BERTH_AT
#undef BERTH_SIZE

#ifdef __cplusplus
}
#endif

#endif
