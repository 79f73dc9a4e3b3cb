/* An RPC plug-in in C, with either signature: returns the xor of all argument bytes, as one byte.
 *
 *   cc -O2 -shared -fPIC -I dataplane/ring/include xor.c -o xor.so
 *
 *   [[function]]
 *   name = "xor"
 *   handler = "plugin:/usr/lib/berth/xor.so#xor_host"     (abi = "host_call")
 *   handler = "plugin:/usr/lib/berth/xor.so#xor_device"   (abi = "device_call")
 */
#include "berth_ring.h"

/* The 24-byte headers; a host-call handler reads the one and writes the other. */
struct request {
    uint32_t magic, function_id, arg_len, request_id;
    uint64_t ptp_timestamp;
};
struct response {
    uint32_t magic;
    int32_t status;
    uint32_t result_len, request_id;
    uint64_t ptp_timestamp;
};

static uint8_t xor_all(const uint8_t *bytes, uint32_t len)
{
    uint8_t sum = 0;
    for (uint32_t i = 0; i < len; i++)
        sum ^= bytes[i];
    return sum;
}

void xor_host(const void *rx_slot, void *tx_slot, size_t slot_size)
{
    const struct request *request = rx_slot;
    struct response *response = tx_slot;
    if (slot_size <= sizeof *response || request->arg_len > slot_size - sizeof *request)
        return; /* no response: Berth answers that the handler failed */
    *(uint8_t *)(response + 1) = xor_all((const uint8_t *)(request + 1), request->arg_len);
    response->magic = 0x43555153;
    response->status = 0;
    response->result_len = 1;
    response->request_id = request->request_id;
    response->ptp_timestamp = request->ptp_timestamp;
}

int xor_device(const void *input, void *output, uint32_t arg_len, uint32_t max_result_len, uint32_t *result_len)
{
    if (max_result_len < 1)
        return 1; /* a status of our own */
    *(uint8_t *)output = xor_all(input, arg_len);
    *result_len = 1;
    return 0;
}

/* The signatures are those of the header. */
static const berth_host_call host = xor_host;
static const berth_device_call device = xor_device;
const void *const xor_signatures[] = {&host, &device};
