//! What each counter is called in `/metrics`, and what it means.
//!
//! Layers report counters as flat names. Here each gets a family, labels where several counters are one thing by
//! reason, and the line of help that Prometheus shows. docs/telemetry.md has the same table; a test keeps them equal.

/// Counters that one name and one help stand for.
#[derive(Debug)]
pub(super) struct Family {
    /// The layer that counts: see [`locate`].
    part: &'static str,
    /// The name behind the layer's; `_total` follows for what only grows.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) is_gauge: bool,
    /// Each counter as it is reported, and its labels as `key=value,..`. A `*` in the former stands for any text, which
    /// is the value of the label that is given none.
    counters: &'static [(&'static str, &'static str)],
}

/// Where a counter is shown.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) family: &'static Family,
    pub(super) labels: Vec<(&'static str, String)>,
}

impl Family {
    /// Whether it counts what was not served.
    pub(super) fn is_loss(&self) -> bool {
        self.name.ends_with("dropped") || self.name.ends_with("refused")
    }
}

/// The family and labels of a counter that `part` reports: `lcore`, `lane`, `port`, `service`, `worker`, `control`,
/// `data` or `admin`.
pub(super) fn locate(part: &str, counter: &str) -> Option<Place> {
    // Services of both kinds and workers count much the same.
    let parts: &[&str] = match part {
        "service" => &["rpc", "data"],
        "worker" => &["worker", "rpc"],
        part => &[part],
    };
    parts.iter().find_map(|part| {
        CATALOG.iter().filter(|family| family.part == *part).find_map(|family| {
            family.counters.iter().find_map(|(pattern, labels)| {
                Some(Place { family, labels: labels_of(labels, matched(pattern, counter)?) })
            })
        })
    })
}

/// What the star of `pattern` stands for in `name`; nothing where there is no star, `None` where they do not match.
fn matched<'n>(pattern: &str, name: &'n str) -> Option<&'n str> {
    match pattern.split_once('*') {
        None => (pattern == name).then_some(""),
        Some((before, after)) => name.strip_prefix(before)?.strip_suffix(after).filter(|star| !star.is_empty()),
    }
}

fn labels_of(labels: &'static str, star: &str) -> Vec<(&'static str, String)> {
    let pairs = labels.split(',').filter(|label| !label.is_empty());
    pairs
        .map(|label| label.split_once('=').map_or((label, star.to_owned()), |(key, value)| (key, value.to_owned())))
        .collect()
}

/// The table of docs/telemetry.md.
#[cfg(test)]
fn table() -> String {
    use std::fmt::Write as _;

    let mut out = String::from("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
    for family in CATALOG {
        let prefixes: &[&str] = match family.part {
            "rpc" => &["service", "worker"],
            "data" => &["service", "data"],
            ref part => std::slice::from_ref(part),
        };
        let (name, unit) = family.name.strip_suffix("_ns").map_or((family.name, ""), |name| (name, "_seconds"));
        let (kind, total) = if family.is_gauge { ("gauge", "") } else { ("counter", "_total") };
        let names: Vec<_> = prefixes.iter().map(|prefix| format!("`berth_{prefix}_{name}{unit}{total}`")).collect();
        let mut labels = std::collections::BTreeMap::<_, Vec<_>>::new();
        for (key, value) in family.counters.iter().flat_map(|(_, labels)| labels_of(labels, "")) {
            let values = labels.entry(key).or_default();
            if !value.is_empty() && !values.contains(&value) {
                values.push(value);
            }
        }
        let labels: Vec<_> = labels
            .into_iter()
            .map(
                |(key, values)| {
                    if values.is_empty() { format!("`{key}`") } else { format!("`{key}`: {}", values.join(", ")) }
                },
            )
            .collect();
        // Writing to a string succeeds.
        let _ = writeln!(out, "| {} | {kind} | {} | {} |", names.join(", "), labels.join("; "), family.help);
    }
    out
}

const fn family(
    part: &'static str,
    name: &'static str,
    help: &'static str,
    counters: &'static [(&'static str, &'static str)],
) -> Family {
    Family { part, name, help, is_gauge: false, counters }
}

const fn gauge(
    part: &'static str,
    name: &'static str,
    help: &'static str,
    counters: &'static [(&'static str, &'static str)],
) -> Family {
    Family { part, name, help, is_gauge: true, counters }
}

#[rustfmt::skip]
const CATALOG: &[Family] = &[
    family("lcore", "elapsed_ns", "time since the first poll", &[("elapsed_ns", "")]),
    family("lcore", "busy_ns", "time of turns that received or answered something", &[("busy_ns", "")]),
    family("lcore", "sleeps", "times that the loop slept", &[("sleeps", "")]),
    family("lcore", "slept_ns", "time that the loop slept", &[("slept_ns", "")]),
    family("lcore", "drain_abandoned", "answers owed when a drain ran out of time", &[("drain_abandoned", "")]),

    family("lane", "polls", "turns that it had", &[("polls", "")]),
    family("lane", "empty_polls", "turns that received and answered nothing", &[("empty_polls", "")]),
    family("lane", "busy_ns", "time of turns that received or answered something", &[("busy_ns", "")]),
    family("lane", "frames_rx", "frames given to the service", &[("frames_rx", "")]),
    family("lane", "frames_replied", "frames that the service answered, at once or later", &[("frames_replied", "")]),

    family("port", "rx_frames", "frames received", &[("rx_frames", "")]),
    family("port", "rx_bytes", "bytes received, with all headers", &[("rx_bytes", "")]),
    family("port", "rx_truncated", "frames longer than the port takes, given to the service cut off", &[("rx_truncated", "")]),
    family("port", "rx_answered", "frames that the port answers by itself: ARP, NDP, ping", &[("rx_answered", "")]),
    family("port", "rx_neighbour", "frames that only told where a neighbour is", &[("rx_neighbour", "")]),
    family("port", "rx_dropped", "frames that were not given to the service", &[
        ("rx_malformed", "reason=malformed"),
        ("rx_bad_checksum", "reason=bad_checksum"),
        ("rx_other_station", "reason=other_station"),
        ("rx_other_vlan", "reason=other_vlan"),
        ("rx_other_ether_type", "reason=other_ether_type"),
        ("rx_other_address", "reason=other_address"),
        ("rx_bad_source", "reason=bad_source"),
        ("rx_fragment", "reason=fragment"),
        ("rx_ipv6_extension", "reason=ipv6_extension"),
        ("rx_other_protocol", "reason=other_protocol"),
        ("rx_other_port", "reason=other_port"),
        ("rx_multi_segment", "reason=multi_segment"),
        ("rx_shared", "reason=shared_buffer"),
        ("rx_overrun", "reason=socket_full"),
        ("rx_unknown", "reason=unknown_peer"),
        ("rx_too_long", "reason=too_long"),
        ("device_rx_missed", "reason=device_missed"),
        ("device_rx_errors", "reason=device_error"),
        ("device_rx_no_buffer", "reason=no_buffer"),
        ("bad_immediates", "reason=bad_immediate"),
        ("slot_out_of_range", "reason=slot_out_of_range"),
        ("slot_overruns", "reason=slot_overrun"),
        ("slot_mismatches", "reason=slot_mismatch"),
        ("roce_malformed", "reason=roce_malformed"),
        ("roce_bad_icrc", "reason=bad_icrc"),
        ("roce_unknown_opcode", "reason=unknown_opcode"),
        ("roce_unknown_qpn", "reason=unknown_qpn"),
        ("roce_wrong_source", "reason=wrong_source"),
        ("roce_wrong_p_key", "reason=wrong_p_key"),
        ("roce_stale_psn", "reason=stale_psn"),
        ("roce_orphans", "reason=orphan"),
        ("roce_bad_length", "reason=bad_length"),
        ("roce_wrong_rkey", "reason=wrong_rkey"),
        ("roce_out_of_range", "reason=out_of_range"),
    ]),
    family("port", "rx_errors", "receive calls that failed", &[("rx_errors", "")]),
    family("port", "rx_held", "polls that received nothing, because answers waited for room at the device", &[("rx_held", "")]),
    family("port", "rx_rearms", "times the receive of an io_uring ended and was started again", &[("rx_rearms", "")]),
    family("port", "rx_no_buffers", "times that receive found no free buffer; the socket keeps the frames", &[("rx_no_buffers", "")]),
    family("port", "tx_frames", "frames that the device took", &[("tx_frames", "")]),
    family("port", "tx_bytes", "bytes that the device took, with all headers", &[("tx_bytes", "")]),
    family("port", "tx_deferred", "times that the device took no more and the rest stayed queued", &[("tx_deferred", "")]),
    family("port", "tx_solicited", "questions for a neighbour's address", &[("tx_solicited", "")]),
    family("port", "tx_dropped", "frames that were to be sent and were not", &[
        ("tx_dropped", "reason=full"),
        ("tx_dropped_no_buffer", "reason=no_buffer"),
        ("tx_refused", "reason=refused"),
        ("tx_too_long", "reason=too_long"),
        ("tx_unresolved", "reason=unresolved"),
        ("tx_off_link", "reason=off_link"),
        ("tx_errors", "reason=error"),
        ("tx_gone", "reason=peer_gone"),
        ("device_tx_errors", "reason=device_error"),
    ]),
    family("port", "icmp_errors", "ICMP errors about frames that were sent", &[("icmp_errors", "")]),
    family("port", "cq_overflows", "completions of an io_uring that the kernel held back", &[("cq_overflows", "")]),
    family("port", "ring_errors", "calls into an io_uring that failed", &[("ring_errors", "")]),
    family("port", "connections", "connections that a poll core has taken over", &[("connections", "")]),
    family("port", "connections_timed_out", "those whose peer took too long for a message or an answer", &[("connections_timed_out", "")]),
    family("port", "psn_gaps", "times that packet sequence numbers were missing", &[("psn_gaps", "")]),
    family("port", "psn_lost", "packet sequence numbers that were missing", &[("psn_lost", "")]),
    family("port", "psn_restarts", "senders that began anew", &[("psn_restarts", "")]),
    family("port", "roce_packets", "RoCEv2 packets that were taken", &[("roce_packets", "")]),
    family("port", "roce_messages", "RoCEv2 messages that were taken whole", &[("roce_messages", "")]),
    family("port", "roce_broken_messages", "RoCEv2 messages that a gap or the next one's start ended", &[("roce_broken_messages", "")]),
    family("port", "roce_sent", "RoCEv2 packets that were sent", &[("roce_sent", "")]),
    family("port", "peers", "peers of RDMA or libfabric, by what became of them", &[
        ("peers", "event=joined"),
        ("roce_peers_added", "event=joined"),
        ("peers_joined", "event=joined"),
        ("roce_peers_removed", "event=left"),
        ("peers_left", "event=left"),
        ("peers_refused", "event=refused"),
        ("offers_refused", "event=refused"),
        ("peers_failed", "event=failed"),
    ]),
    family("port", "rendezvous", "connections of peers to the rendezvous, by what became of them", &[
        ("rendezvous_peers", "event=taken"),
        ("rendezvous_gone", "event=gone"),
        ("rendezvous_refused", "event=refused"),
        ("rendezvous_full", "event=full"),
        ("rendezvous_displaced", "event=displaced"),
        ("rendezvous_malformed", "event=malformed"),
        ("rendezvous_timed_out", "event=timed_out"),
    ]),
    family("port", "device_events", "an RDMA device that was lost, that returned, or whose completion queue overran", &[
        ("device_losses", "event=lost"),
        ("device_returns", "event=returned"),
        ("cq_overruns", "event=cq_overrun"),
    ]),
    family("port", "provider_errors", "errors of a libfabric provider that belong to no frame", &[("provider_errors", "")]),
    family("port", "faults", "frames that the fault layer hit, by its direction and fault", &[
        ("fault_rx_dropped", "direction=rx,fault=dropped"),
        ("fault_rx_corrupted", "direction=rx,fault=corrupted"),
        ("fault_rx_duplicated", "direction=rx,fault=duplicated"),
        ("fault_rx_delayed", "direction=rx,fault=delayed"),
        ("fault_rx_reordered", "direction=rx,fault=reordered"),
        ("fault_rx_pool_full", "direction=rx,fault=pool_full"),
        ("fault_rx_held", "direction=rx,fault=held"),
        ("fault_rx_released", "direction=rx,fault=released"),
        ("fault_tx_dropped", "direction=tx,fault=dropped"),
        ("fault_tx_corrupted", "direction=tx,fault=corrupted"),
        ("fault_tx_duplicated", "direction=tx,fault=duplicated"),
        ("fault_tx_delayed", "direction=tx,fault=delayed"),
        ("fault_tx_reordered", "direction=tx,fault=reordered"),
        ("fault_tx_pool_full", "direction=tx,fault=pool_full"),
        ("fault_tx_held", "direction=tx,fault=held"),
        ("fault_tx_released", "direction=tx,fault=released"),
        ("fault_tx_refused", "direction=tx,fault=refused"),
    ]),
    family("port", "pcap_frames", "frames written to the capture", &[("pcap_frames", "")]),
    family("port", "pcap_missed", "frames that the capture had no room for", &[("pcap_missed", "")]),
    family("port", "pcap_write_errors", "writes to the capture that failed", &[("pcap_write_errors", "")]),

    family("worker", "elapsed_ns", "time since its lcore's first poll", &[("elapsed_ns", "")]),
    family("worker", "busy_ns", "time of turns that served something", &[("busy_ns", "")]),

    family("rpc", "received", "messages received", &[("received", "")]),
    family("rpc", "answered", "requests answered with results", &[("answered", "")]),
    family("rpc", "handler_errors", "requests answered with a status of the handler's own", &[("handler_error", "")]),
    family("rpc", "refused", "requests answered with a negative status, or with none where on_undispatchable says so", &[
        ("unknown_function", "reason=unknown_function"),
        ("bad_length", "reason=bad_length"),
        ("schema_mismatch", "reason=schema_mismatch"),
        ("result_too_large", "reason=result_too_large"),
        ("overloaded", "reason=overloaded"),
        ("handler_failed", "reason=handler_failed"),
    ]),
    family("rpc", "dropped", "messages that are no request", &[
        ("bad_magic", "reason=bad_magic"),
        ("truncated", "reason=truncated"),
    ]),
    family("rpc", "unanswered", "refused requests that got no answer: on_undispatchable is drop, or there was no room to keep one in order", &[("dropped_undispatchable", "")]),
    family("rpc", "handler_faults", "what handlers did wrong", &[
        ("over_budget", "fault=over_budget"),
        ("panicked", "fault=panicked"),
        ("bad_result", "fault=bad_result"),
        ("timed_out", "fault=timed_out"),
    ]),
    family("rpc", "overloaded", "of the requests refused as overloaded: why", &[
        ("resting", "reason=function_rests"),
        ("ring_full", "reason=ring_full"),
        ("limited_peer", "reason=peer_limit"),
        ("limited_crowd", "reason=crowd_limit"),
        ("limited_port", "reason=port_limit"),
        ("order_full", "reason=order_full"),
    ]),
    family("rpc", "late_answers", "answers of workers that came after the request was answered for them", &[("late_answers", "")]),
    family("rpc", "unroutable", "answers without a route to their peer", &[("unroutable", "")]),
    family("rpc", "bad_stamps", "requests whose PTP stamp cannot be compared", &[
        ("future_stamps", "reason=future"),
        ("bad_stamps", "reason=malformed"),
    ]),
    family("rpc", "calls", "calls of a function", &[("calls_*", "function")]),
    family("rpc", "ring_requests", "requests put into the ring to a worker", &[("ring_pushed", "")]),
    family("rpc", "ring_answers", "answers taken from the ring", &[("ring_collected", "")]),
    family("rpc", "ring_dispatched", "requests taken from the ring by the worker", &[("ring_dispatched", "")]),
    family("rpc", "ring_events", "what happened in the ring beside requests and answers", &[
        ("ring_overruns", "event=overrun"),
        ("ring_error_answers", "event=error_answer"),
        ("ring_unanswered", "event=unanswered"),
        ("ring_late_answers", "event=late_answer"),
        ("ring_bad_tx_flags", "event=bad_tx_flag"),
        ("ring_handler_errors", "event=handler_error"),
        ("ring_handler_unwound", "event=handler_unwound"),
        ("ring_bad_rx_flags", "event=bad_rx_flag"),
        ("ring_slots_reused", "event=slot_reused"),
        ("ring_tx_overwritten", "event=tx_overwritten"),
        ("ring_gaps", "event=gap"),
        ("ring_skipped", "event=skipped"),
    ]),

    family("data", "messages", "messages about leased bytes", &[("received", "")]),
    family("data", "accesses", "messages about leased bytes that were answered with success", &[
        ("read", "op=read"),
        ("written", "op=write"),
        ("greeted", "op=greet"),
        ("pinged", "op=ping"),
    ]),
    family("data", "access_bytes", "leased bytes read and written", &[
        ("bytes_read", "op=read"),
        ("bytes_written", "op=write"),
    ]),
    family("data", "access_refused", "accesses to leased bytes that were refused", &[
        ("unknown_lease", "reason=unknown_lease"),
        ("revoked", "reason=revoked"),
        ("expired", "reason=expired"),
        ("stale_generation", "reason=stale_generation"),
        ("bad_request", "reason=bad_request"),
        ("too_long", "reason=too_long"),
        ("out_of_range", "reason=out_of_range"),
        ("denied", "reason=denied"),
        ("busy", "reason=busy"),
        ("storage_failed", "reason=storage_failed"),
        ("not_theirs", "reason=not_theirs"),
        ("over_quota", "reason=over_quota"),
        ("limited_peer", "reason=peer_limit"),
        ("limited_crowd", "reason=crowd_limit"),
        ("limited_port", "reason=port_limit"),
    ]),
    family("data", "access_dropped", "messages about leased bytes that are malformed", &[("malformed", "reason=malformed")]),
    family("data", "access_unroutable", "answers about leased bytes without a route to their peer", &[("unroutable", "")]),

    gauge("control", "leases", "leases that stand", &[("leases", "")]),
    gauge("control", "leased_bytes", "bytes of leases that stand", &[("leased_bytes", "")]),
    gauge("control", "region_size_bytes", "bytes of a region", &[("region_*_size_bytes", "region")]),
    gauge("control", "region_free_bytes", "bytes of a region that can be leased", &[("region_*_free_bytes", "region")]),
    gauge("control", "holder_used", "what a presenter that a policy names has of its quota; of all others, for each item, who has most", &[
        ("holder_*_leases_used", "holder,item=leases"),
        ("holder_*_bytes_used", "holder,item=bytes"),
        ("holder_*_handles_used", "holder,item=handles"),
        ("holder_*_attachments_used", "holder,item=attachments"),
        ("holder_*_proxies_used", "holder,item=proxies"),
        ("holder_*_bindings_used", "holder,item=bindings"),
        ("holder_*_page_state_used", "holder,item=page_state"),
    ]),
    gauge("control", "holder_quota", "how much that presenter, or each of the others, may have", &[
        ("holder_*_leases_quota", "holder,item=leases"),
        ("holder_*_bytes_quota", "holder,item=bytes"),
        ("holder_*_handles_quota", "holder,item=handles"),
        ("holder_*_attachments_quota", "holder,item=attachments"),
        ("holder_*_proxies_quota", "holder,item=proxies"),
        ("holder_*_bindings_quota", "holder,item=bindings"),
        ("holder_*_page_state_quota", "holder,item=page_state"),
    ]),
    family("control", "requests_answered", "ops answered", &[("requests_answered", "")]),
    family("control", "requests_not_durable", "ops left unanswered because the journal failed", &[("requests_not_durable", "")]),
    family("control", "ops_refused", "ops of the control plane that were refused", &[("op_*_refused", "op"), ("unknown_ops", "op=unknown")]),
    family("control", "ops", "ops of the control plane that were done", &[("op_*", "op")]),
    family("control", "leases_expired", "leases that expired", &[("leases_expired", "")]),
    family("control", "teardowns_failed", "leases whose binding could not be torn down", &[("teardowns_failed", "")]),
    family("control", "connections", "connections accepted", &[
        ("connections", "kind=control"),
        ("proxy_connections", "kind=proxy"),
    ]),
    family("control", "connections_refused", "connections that were refused or ended by the node", &[
        ("connections_refused", "reason=full"),
        ("connections_displaced", "reason=displaced"),
        ("connections_timed_out", "reason=timed_out"),
        ("handshakes_failed", "reason=handshake_failed"),
    ]),
    family("control", "handshakes_retried", "QUIC handshakes that were asked to show where their peer is", &[("handshakes_retried", "")]),
    family("control", "streams_reset", "QUIC streams reset as malformed or too slow", &[("streams_reset", "")]),
    family("control", "sends_failed", "datagrams that could not be sent", &[("sends_failed", "")]),
    family("control", "messages_accepted", "messages over UDP that were taken", &[("messages_accepted", "")]),
    family("control", "answers_repeated", "answers over UDP sent again for a repeated request", &[("answers_repeated", "")]),
    family("control", "frames_dropped", "messages over UDP that were not taken", &[
        ("frames_malformed", "reason=malformed"),
        ("frames_unexpected", "reason=unexpected"),
        ("frames_unenrolled", "reason=unenrolled"),
        ("frames_unsigned", "reason=unsigned"),
        ("frames_forged", "reason=forged"),
        ("frames_replayed", "reason=replayed"),
        ("frames_elsewhere", "reason=elsewhere"),
        ("frames_over_share", "reason=over_share"),
        ("fragments_conflicting", "reason=fragments_conflicting"),
        ("fragments_timed_out", "reason=fragments_timed_out"),
        ("fragments_evicted", "reason=fragments_evicted"),
        ("shim_crowded_out", "reason=crowded_out"),
    ]),
    family("control", "solicits_answered", "questions for announcements that were answered", &[("solicits_answered", "")]),
    family("control", "solicits_dropped", "questions for announcements that were not answered", &[
        ("solicits_malformed", "reason=malformed"),
        ("solicits_unpadded", "reason=unpadded"),
        ("solicits_over_budget", "reason=over_budget"),
    ]),
    family("control", "announcements", "announcements of other nodes that the relay took", &[
        ("relay_announcements_taken", "kind=announce"),
        ("relay_withdrawals_taken", "kind=withdraw"),
    ]),
    family("control", "announcements_dropped", "announcements of other nodes that the relay did not take", &[
        ("relay_announcements_malformed", "reason=malformed"),
        ("relay_announcements_foreign", "reason=foreign"),
        ("relay_announcements_old", "reason=old"),
        ("relay_announcements_full", "reason=full"),
        ("relay_announcements_displaced", "reason=displaced"),
    ]),
    family("control", "journal_commits", "commits to the journal", &[("journal_commits", "")]),
    family("control", "journal_groups", "groups of commits, each made durable by one fdatasync", &[("journal_groups", "")]),
    gauge("control", "journal_bytes", "length of the journal", &[("journal_bytes", "")]),
    gauge("control", "journal_degraded", "1 where the journal has failed and nothing is granted any more", &[("journal_degraded", "")]),
    gauge("control", "journal_full", "1 while the disk of the journal is full and nothing is granted", &[("journal_full", "")]),
    family("control", "journal_compactions", "times the journal was written anew", &[
        ("journal_compactions", "outcome=done"),
        ("journal_failed_compactions", "outcome=failed"),
    ]),
    family("control", "region_ops", "requests to the blocks of a region", &[
        ("region_*_block_reads", "region,op=read"),
        ("region_*_block_writes", "region,op=write"),
        ("region_*_block_zeroes", "region,op=zero"),
        ("region_*_block_flushes", "region,op=flush"),
    ]),
    family("control", "region_bytes", "bytes of blocks read and written", &[
        ("region_*_block_bytes_read", "region,op=read"),
        ("region_*_block_bytes_written", "region,op=write"),
    ]),
    family("control", "region_merged", "writes that had to read a block first", &[("region_*_block_merged", "region")]),
    family("control", "region_refused", "requests to the blocks of a region that were refused or failed", &[
        ("region_*_block_busy", "region,reason=busy"),
        ("region_*_block_refused", "region,reason=out_of_range"),
        ("region_*_block_no_space", "region,reason=no_space"),
        ("region_*_block_failed", "region,reason=failed"),
    ]),
    gauge("control", "rdma_connected", "leases connected over RDMA", &[("rdma_connected", "")]),
    family("control", "rdma_binds", "leases that were connected over RDMA", &[("rdma_binds", "")]),
    family("control", "rdma_binds_refused", "leases that were not connected over RDMA", &[
        ("rdma_binds_failed", "reason=failed"),
        ("rdma_full", "reason=full"),
    ]),
    family("control", "rdma_events", "what befell connections over RDMA", &[
        ("rdma_peers_lost", "event=peer_lost"),
        ("rdma_faults", "event=fault"),
        ("rdma_devices_removed", "event=device_removed"),
        ("rdma_links_removed", "event=link_removed"),
    ]),

    family("admin", "requests", "requests to the admin address that were answered", &[("answered", "")]),
    family("admin", "refused", "requests to the admin address that were refused", &[
        ("unauthorized", "reason=unauthorized"),
        ("foreign_host", "reason=foreign_host"),
        ("not_found", "reason=not_found"),
        ("not_allowed", "reason=not_allowed"),
        ("failed", "reason=failed"),
        ("evicted", "reason=evicted"),
    ]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_has_its_family_and_labels() {
        let shown = |part, counter| {
            let place = locate(part, counter)?;
            let labels: Vec<_> = place.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            Some((place.family.name, labels.join(",")))
        };
        assert_eq!(shown("port", "rx_overrun"), Some(("rx_dropped", "reason=socket_full".into())));
        assert_eq!(shown("service", "calls_qec_decode"), Some(("calls", "function=qec_decode".into())));
        assert_eq!(shown("worker", "busy_ns"), Some(("busy_ns", String::new())));
        assert_eq!(shown("worker", "overloaded"), Some(("refused", "reason=overloaded".into())));
        assert_eq!(shown("service", "expired"), Some(("access_refused", "reason=expired".into())));
        let expected = ("region_refused", "region=a-1,reason=busy".into());
        assert_eq!(shown("control", "region_a-1_block_busy"), Some(expected));
        assert_eq!(shown("control", "op_lease_alloc_refused"), Some(("ops_refused", "op=lease_alloc".into())));
        assert_eq!(shown("service", "calls_"), None);
        assert_eq!(shown("port", "no_such_thing"), None);
    }

    #[test]
    fn no_family_is_named_twice_and_each_has_its_line_in_the_docs() {
        let mut names: Vec<_> = CATALOG.iter().map(|family| (family.part, family.name)).collect();
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before);
        let docs = include_str!("../../../docs/telemetry.md");
        for line in table().lines() {
            assert!(docs.contains(line), "docs/telemetry.md lacks the line\n{line}\nThe whole table is\n{}", table());
        }
    }
}
