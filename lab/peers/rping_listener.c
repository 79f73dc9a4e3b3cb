// pkg-config: librdmacm libibverbs
/*
 * Lets a client of rdma_cm, such as rping, reach a queue pair that another program made.
 *
 * usage: rping_listener ADDRESS PORT
 *
 * Listens, and says of the first client `peer QPN PSN GID OWN_PSN MTU`. A line with a number on standard input is the queue pair
 * that shall be its peer, connected already; then `established`, and `gone` when the client has left.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/rdma_cma.h>

static struct rdma_event_channel *channel;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* Waits for an event of this kind and returns its connection. */
static struct rdma_cm_id *await(enum rdma_cm_event_type wanted)
{
    struct rdma_cm_event *event;
    if (rdma_get_cm_event(channel, &event))
        die("rdma_get_cm_event");
    if (event->event != wanted) {
        fprintf(stderr, "%s, not %s\n", rdma_event_str(event->event), rdma_event_str(wanted));
        exit(1);
    }
    struct rdma_cm_id *id = event->id;
    rdma_ack_cm_event(event);
    return id;
}

static struct ibv_qp_attr attributes(struct rdma_cm_id *id, enum ibv_qp_state state)
{
    struct ibv_qp_attr attr = {.qp_state = state};
    int mask;
    if (rdma_init_qp_attr(id, &attr, &mask))
        die("rdma_init_qp_attr");
    return attr;
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    if (argc != 3 || inet_pton(AF_INET, argv[1], &at.sin_addr) != 1)
        return 2;
    at.sin_port = htons(atoi(argv[2]));
    struct rdma_cm_id *listener;
    if (!(channel = rdma_create_event_channel()) || rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP))
        die("rdma_create_id");
    if (rdma_bind_addr(listener, (struct sockaddr *)&at) || rdma_listen(listener, 1))
        die("rdma_listen");
    puts("listening");
    fflush(stdout);

    struct rdma_cm_id *id = await(RDMA_CM_EVENT_CONNECT_REQUEST);
    struct ibv_qp_attr rtr = attributes(id, IBV_QPS_RTR), rts = attributes(id, IBV_QPS_RTS);
    char gid[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, rtr.ah_attr.grh.dgid.raw, gid, sizeof gid);
    printf("peer %u %u %s %u %u\n", rtr.dest_qp_num, rtr.rq_psn, gid, rts.sq_psn, 128u << rtr.path_mtu);
    fflush(stdout);

    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = 7};
    if (scanf("%u", &param.qp_num) != 1)
        return 1;
    if (rdma_accept(id, &param))
        die("rdma_accept");
    await(RDMA_CM_EVENT_ESTABLISHED);
    puts("established");
    fflush(stdout);
    await(RDMA_CM_EVENT_DISCONNECTED);
    rdma_disconnect(id);
    puts("gone");
    return 0;
}
