/* A client that does nearly nothing for a packet, so that the server on the other end of a memif is what is measured.
 *
 * Build: cc -O3 -march=native -o memif_blast memif_blast.c
 * Run:   memif_blast SOCKET CPU SECONDS REQUEST ID ANSWER
 *
 * It is the client of the memif itself (version 2.0, SOCKET in the abstract namespace, one ring each way) and of the service: its frames were built before,
 * and stay where they are in the memory that the server reads. REQUEST and ANSWER are a UDP payload and what is answered to
 * it, in hex; the 4 bytes at ID of both (none where ID is -1) are the number of the request. Up to WINDOW requests are under
 * way. Answers come in order on a memif: each has its length compared, and every 64th all of its bytes. After 0.3 s of
 * warm-up it counts for SECONDS, waits for what is under way, prints a line, "blasted" and JSON with `answered_per_s`,
 * `answered` and `verified`, and stays until the server goes. It ends with 1 if an answer was wrong or missing. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { LOG2_RING = 10, RING = 1 << LOG2_RING, WINDOW = 512, BURST = 64, AHEAD = 16, HEADERS = 14 + 20 + 8, MAX_PAYLOAD = 8192 };
enum { ACK = 1, HELLO, INIT, ADD_REGION, ADD_RING, CONNECT, CONNECTED };
enum { COOKIE = 0x3E31F20, VERSION = 2 << 8, NO_INTERRUPT = 1, TO_SERVER = 1 };

struct message {
    uint16_t type;
    union {
        struct __attribute__((packed)) { uint16_t version; uint32_t id; uint8_t mode, secret[24], name[32]; } init;
        struct __attribute__((packed)) { uint16_t index; uint64_t size; } region;
        struct __attribute__((packed)) {
            uint16_t flags, index, region;
            uint32_t offset;
            uint8_t log2_size;
            uint16_t private_header;
        } ring;
        uint8_t bytes[126];
    };
} __attribute__((packed));

struct descriptor { uint16_t flags, region; uint32_t length, offset, metadata; };

/* The client adds to the head, the server to the tail. */
struct ring {
    uint32_t cookie;
    uint16_t flags, head;
    uint8_t pad[56];
    uint16_t tail;
    uint8_t more_pad[62];
    struct descriptor slots[RING];
};

static uint8_t request[MAX_PAYLOAD], answer[MAX_PAYLOAD], *memory;
static int request_len, answer_len, id_at, control;

static int unhex(const char *hex, uint8_t *into) {
    int len = strlen(hex) / 2;
    if (len > MAX_PAYLOAD)
        errx(2, "at most %d bytes", MAX_PAYLOAD);
    for (int i = 0; i < len; i++)
        sscanf(hex + 2 * i, "%2hhx", into + i);
    return len;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void expect(int type) {
    struct message message;
    if (recv(control, &message, sizeof message, 0) != sizeof message)
        err(1, "the server closed the memif");
    if (message.type != type)
        errx(1, "the server said %d in place of %d", message.type, type);
}

static void say(struct message *message, int type, int fd) {
    message->type = type;
    struct iovec bytes = {message, sizeof *message};
    union { struct cmsghdr head; char room[CMSG_SPACE(sizeof fd)]; } extra = {0};
    struct msghdr whole = {.msg_iov = &bytes, .msg_iovlen = 1};
    if (fd >= 0) {
        extra.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&extra.head), &fd, sizeof fd);
        whole.msg_control = &extra;
        whole.msg_controllen = sizeof extra;
    }
    if (sendmsg(control, &whole, 0) != sizeof *message)
        err(1, "sendmsg");
    expect(type == CONNECT ? CONNECTED : ACK);
}

static struct ring *add_ring(bool to_server, uint32_t offset, uint32_t buffers, uint32_t stride) {
    struct ring *ring = (struct ring *)(memory + offset);
    *ring = (struct ring){.cookie = COOKIE, .flags = NO_INTERRUPT};
    for (int i = 0; i < RING; i++)
        ring->slots[i] = (struct descriptor){.length = stride, .offset = buffers + i * stride};
    struct message message = {0};
    message.ring.flags = to_server ? TO_SERVER : 0;
    message.ring.offset = offset;
    message.ring.log2_size = LOG2_RING;
    say(&message, ADD_RING, eventfd(0, EFD_NONBLOCK));
    return ring;
}

static uint32_t sum(const uint8_t *bytes, int len) {
    uint32_t sum = 0;
    for (int i = 0; i < len; i++)
        sum += bytes[i] << (i % 2 ? 0 : 8);
    return sum;
}

static uint16_t fold(uint32_t sum) {
    sum = (sum >> 16) + (sum & 0xFFFF);
    sum = (sum >> 16) + (sum & 0xFFFF);
    return htons(~sum);
}

/* A frame from 10.0.0.1 to 10.0.0.2, port 4700, without its UDP checksum; returns the sum that it is made of. */
static uint32_t build(uint8_t *frame) {
    static const uint8_t ethernet[] = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0}, addresses[] = {10, 0, 0, 1, 10, 0, 0, 2};
    uint16_t ip_len = htons(28 + request_len), udp_len = htons(8 + request_len), from = htons(40000), to = htons(4700);
    uint8_t *ip = frame + 14, *udp = frame + 34;
    memcpy(frame, ethernet, sizeof ethernet);
    memcpy(ip, (uint8_t[]){0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17}, 10);
    memcpy(ip + 2, &ip_len, 2);
    memcpy(ip + 12, addresses, sizeof addresses);
    uint16_t check = fold(sum(ip, 20));
    memcpy(ip + 10, &check, 2);
    memcpy(udp, &from, 2), memcpy(udp + 2, &to, 2), memcpy(udp + 4, &udp_len, 2);
    memcpy(frame + HEADERS, request, request_len);
    if (id_at >= 0)
        memset(frame + HEADERS + id_at, 0, 4);
    return sum(ip + 12, 8) + 17 + ntohs(udp_len) + sum(udp, 6) + sum(frame + HEADERS, request_len);
}

static void verify(const uint8_t *frame, uint32_t id) {
    if (id_at >= 0)
        memcpy(answer + id_at, &id, 4);
    if (memcmp(frame + HEADERS, answer, answer_len))
        errx(1, "a wrong answer to request %u", id);
}

int main(int argc, char **argv) {
    if (argc != 7)
        errx(2, "usage: memif_blast SOCKET CPU SECONDS REQUEST ID ANSWER");
    const double seconds = atof(argv[3]);
    request_len = unhex(argv[4], request), id_at = atoi(argv[5]), answer_len = unhex(argv[6], answer);
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(atoi(argv[2]), &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus))
        err(1, "pinning to cpu %s", argv[2]);

    /* An odd number of cache lines from one buffer to the next, so that they use all sets of the caches. */
    int longest = HEADERS + (request_len > answer_len ? request_len : answer_len);
    uint32_t stride = ((longest + 64) / 128 * 2 + 1) * 64, rings = (sizeof(struct ring) + 4095) & ~4095;
    uint32_t buffers = 2 * rings, len = (buffers + 2 * RING * stride + 4095) & ~4095;
    int fd = memfd_create("memif", MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, len) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
        err(1, "memfd");
    memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (memory == MAP_FAILED)
        err(1, "mmap");

    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path + 1, argv[1], sizeof address.sun_path - 2);
    socklen_t address_len = sizeof address.sun_family + 1 + strlen(address.sun_path + 1);
    control = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (control < 0 || connect(control, (struct sockaddr *)&address, address_len))
        err(1, "connecting to %s", argv[1]);
    expect(HELLO);
    struct message message = {0};
    message.init.version = VERSION;
    strcpy((char *)message.init.name, "memif_blast");
    say(&message, INIT, -1);
    message = (struct message){0};
    message.region.size = len;
    say(&message, ADD_REGION, fd);
    struct ring *requests = add_ring(true, 0, buffers, stride);
    struct ring *answers = add_ring(false, rings, buffers + RING * stride, stride);
    uint32_t sums[RING];
    for (int i = 0; i < RING; i++) {
        sums[i] = build(memory + requests->slots[i].offset);
        requests->slots[i].length = HEADERS + request_len;
    }
    message = (struct message){0};
    say(&message, CONNECT, -1);
    /* The server has set both rings to their beginning. */
    uint16_t free_until = RING;
    __atomic_store_n(&answers->head, free_until, __ATOMIC_RELEASE);

    double began = now() + 0.3, end = began + seconds;
    uint64_t sent = 0, answered = 0, verified = 0, before = 0, rounds = 0;
    bool measuring = false;
    for (double at = now();; ) {
        if (++rounds % 64 == 0) {
            at = now();
            if (!measuring && at >= began)
                measuring = true, began = at, before = answered;
            if (at >= end)
                break;
        }
        uint16_t came = __atomic_load_n(&answers->tail, __ATOMIC_ACQUIRE) - (uint16_t)answered;
        for (uint16_t i = 0; i < came; i++, answered++) {
            struct descriptor *slot = &answers->slots[answered % RING];
            __builtin_prefetch(&answers->slots[(answered + AHEAD) % RING], 1);
            if (slot->length != (uint32_t)(HEADERS + answer_len))
                errx(1, "an answer of %u bytes", slot->length);
            if (answered % 64 == 0)
                verify(memory + slot->offset, answered), verified++;
            slot->length = stride;
        }
        if (came)
            __atomic_store_n(&answers->head, free_until += came, __ATOMIC_RELEASE);
        int room = WINDOW - (int)(sent - answered);
        if (room < BURST)
            continue;
        for (int i = 0; i < BURST; i++, sent++) {
            uint8_t *frame = memory + buffers + sent % RING * stride;
            __builtin_prefetch(memory + buffers + (sent + AHEAD) % RING * stride, 1);
            uint32_t id = sent, total = sums[sent % RING];
            if (id_at >= 0) {
                memcpy(frame + HEADERS + id_at, &id, 4);
                total += (uint32_t)ntohs(id & 0xFFFF) + ntohs(id >> 16);
            }
            uint16_t check = fold(total);
            check = check ? check : 0xFFFF;
            memcpy(frame + 40, &check, 2);
        }
        __atomic_store_n(&requests->head, (uint16_t)sent, __ATOMIC_RELEASE);
    }
    double took = now() - began;
    uint64_t counted = answered - before;
    /* What is under way still comes. */
    for (double until = now() + 0.2; now() < until && answered < sent;)
        answered += (uint16_t)(__atomic_load_n(&answers->tail, __ATOMIC_ACQUIRE) - (uint16_t)answered);
    if (answered != sent)
        errx(1, "%lu answers are missing", (unsigned long)(sent - answered));
    printf("blasted {\"answered_per_s\": %.0f, \"answered\": %lu, \"verified\": %lu}\n", counted / took,
           (unsigned long)counted, (unsigned long)verified);
    fflush(stdout);
    /* Some servers forget what they counted when a client goes. */
    recv(control, &message, sizeof message, 0);
    return 0;
}
