/* The headers whose functions berth-dpdk calls. */
#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_memory.h>
#include <rte_mempool.h>
#include <rte_ring.h>

/* Macros that bindgen cannot evaluate: they hide behind RTE_BIT64. */
static const uint64_t BERTH_RX_OFFLOAD_IPV4_CKSUM = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
static const uint64_t BERTH_RX_OFFLOAD_UDP_CKSUM = RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
static const uint64_t BERTH_TX_OFFLOAD_IPV4_CKSUM = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
static const uint64_t BERTH_TX_OFFLOAD_UDP_CKSUM = RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
static const uint64_t BERTH_TX_OFFLOAD_MBUF_FAST_FREE = RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
static const uint64_t BERTH_RSS_IP_UDP = RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP;
static const uint64_t BERTH_MBUF_EXTERNAL = RTE_MBUF_F_EXTERNAL;
static const uint64_t BERTH_MBUF_RX_IP_CKSUM_GOOD = RTE_MBUF_F_RX_IP_CKSUM_GOOD;
static const uint64_t BERTH_MBUF_RX_L4_CKSUM_GOOD = RTE_MBUF_F_RX_L4_CKSUM_GOOD;
static const uint64_t BERTH_MBUF_TX_IPV4 = RTE_MBUF_F_TX_IPV4;
static const uint64_t BERTH_MBUF_TX_IPV6 = RTE_MBUF_F_TX_IPV6;
static const uint64_t BERTH_MBUF_TX_IP_CKSUM = RTE_MBUF_F_TX_IP_CKSUM;
static const uint64_t BERTH_MBUF_TX_UDP_CKSUM = RTE_MBUF_F_TX_UDP_CKSUM;

/* rte_errno is a macro over a thread-local variable. */
static inline int berth_rte_errno(void) { return rte_errno; }
