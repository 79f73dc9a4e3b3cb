// pkg-config: libdpdk
/* Raw frames over a function that vfio-pci has, with any source address: `vf_frames DEVICE SOURCE DESTINATION COUNT`. It prints
 * how many it sent, and how many frames of their type came back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_mbuf.h>

#define TYPE 0x88b5 /* IEEE 802: local experiments */

static struct rte_mempool *pool;

static void open_port(void)
{
    struct rte_eth_conf conf = { 0 };
    pool = rte_pktmbuf_pool_create("frames", 2047, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
    if (!pool || rte_eth_dev_configure(0, 1, 1, &conf) || rte_eth_rx_queue_setup(0, 0, 256, SOCKET_ID_ANY, NULL, pool) ||
        rte_eth_tx_queue_setup(0, 0, 256, SOCKET_ID_ANY, NULL) || rte_eth_dev_start(0))
        rte_exit(1, "the port does not open\n");
    for (int i = 0; i < 100; i++) {
        struct rte_eth_link link;
        if (!rte_eth_link_get_nowait(0, &link) && link.link_status)
            return;
        rte_delay_ms(100);
    }
    rte_exit(1, "no link\n");
}

/* How many frames of the type have come. */
static int take(void)
{
    struct rte_mbuf *frames[32];
    int came = 0, n = rte_eth_rx_burst(0, 0, frames, 32);
    for (int i = 0; i < n; i++) {
        came += rte_pktmbuf_mtod(frames[i], struct rte_ether_hdr *)->ether_type == rte_cpu_to_be_16(TYPE);
        rte_pktmbuf_free(frames[i]);
    }
    return came;
}

static int exchange(const char *source, const char *destination, int count)
{
    struct rte_ether_hdr header = { .ether_type = rte_cpu_to_be_16(TYPE) };
    if (rte_ether_unformat_addr(source, &header.src_addr) || rte_ether_unformat_addr(destination, &header.dst_addr))
        rte_exit(1, "no address\n");
    int sent = 0, back = 0;
    for (int tries = 0; sent < count && tries < 100 * count; tries++) {
        struct rte_mbuf *frame = rte_pktmbuf_alloc(pool);
        if (frame) {
            char *bytes = rte_pktmbuf_append(frame, 60);
            memset(bytes, 0, 60);
            memcpy(bytes, &header, sizeof header);
            if (rte_eth_tx_burst(0, 0, &frame, 1) == 1)
                sent++;
            else
                rte_pktmbuf_free(frame);
        }
        usleep(5000);
        back += take();
    }
    /* What is still on its way. */
    for (int i = 0; i < 200; i++) {
        usleep(10000);
        back += take();
    }
    printf("sent %d\nback %d\n", sent, back);
    return sent == count ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    char prefix[32];
    snprintf(prefix, sizeof prefix, "frames%d", getpid());
    char *eal[] = { argv[0], "-l", "0", "-a", argv[1], "--in-memory", "--file-prefix", prefix, "-m", "16" };
    if (rte_eal_init(sizeof eal / sizeof *eal, eal) < 0)
        return 1;
    open_port();
    int failed = exchange(argv[2], argv[3], atoi(argv[4]));
    rte_eth_dev_stop(0);
    rte_eth_dev_close(0);
    return failed;
}
