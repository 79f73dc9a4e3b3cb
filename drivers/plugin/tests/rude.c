/* Handlers that do not keep to their contract. */
#include "berth_ring.h"

static void respond(void *tx, uint32_t magic, int32_t status, uint32_t result_len, uint32_t request_id)
{
    uint32_t *words = tx;
    words[0] = magic;
    words[1] = (uint32_t)status;
    words[2] = result_len;
    words[3] = request_id;
}

static uint32_t request_id(const void *rx) { return ((const uint32_t *)rx)[3]; }

void silent(const void *rx, void *tx, size_t n) { (void)rx, (void)tx, (void)n; }
void wrong_magic(const void *rx, void *tx, size_t n) { (void)n; respond(tx, 0x43555152, 0, 0, request_id(rx)); }
void wrong_id(const void *rx, void *tx, size_t n) { (void)n; respond(tx, 0x43555153, 0, 0, request_id(rx) + 1); }
void too_long(const void *rx, void *tx, size_t n) { respond(tx, 0x43555153, 0, (uint32_t)n - 23, request_id(rx)); }
void as_long_as_can_be(const void *rx, void *tx, size_t n) { respond(tx, 0x43555153, 0, (uint32_t)n - 24, request_id(rx)); }
void own_error(const void *rx, void *tx, size_t n) { (void)n; respond(tx, 0x43555153, 9, 3, request_id(rx)); }
void nonsense_status(const void *rx, void *tx, size_t n) { (void)n; respond(tx, 0x43555153, -1000, 0, request_id(rx)); }
void minus_one(const void *rx, void *tx, size_t n) { (void)n; respond(tx, 0x43555153, -1, 0, request_id(rx)); }
void slot_size_and_alignment(const void *rx, void *tx, size_t n)
{
    respond(tx, 0x43555153, 0, 8, request_id(rx));
    ((uint32_t *)tx)[6] = (uint32_t)n;
    ((uint32_t *)tx)[7] = (uint32_t)((uintptr_t)rx % 64 | (uintptr_t)tx % 64);
}

int device_too_long(const void *in, void *out, uint32_t args, uint32_t room, uint32_t *len)
{
    (void)in, (void)out, (void)args;
    *len = room + 1;
    return 0;
}
int device_error(const void *in, void *out, uint32_t args, uint32_t room, uint32_t *len)
{
    (void)in, (void)out, (void)args, (void)room, (void)len;
    return 77;
}
int device_minus_one(const void *in, void *out, uint32_t args, uint32_t room, uint32_t *len)
{
    (void)in, (void)out, (void)args, (void)room, (void)len;
    return -1;
}
int device_room(const void *in, void *out, uint32_t args, uint32_t room, uint32_t *len)
{
    (void)in, (void)args;
    *(uint32_t *)out = room;
    *len = 4;
    return 0;
}
