//! Quotas of policies: in force, shown, and changed by a reload.

use std::{net::SocketAddr, process::Command, sync::Arc};

use berth_client::{Alloc, Client, Error};
use berth_tls::key_file;
use berth_wire::fabric::{Perms, Status};
use tokio::time::{Duration, sleep};

use crate::common::{ADMIN, Berth, admin, get};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_is_in_force_and_shown_and_a_reload_changes_it() {
    let identity = Arc::new(key_file::generate().unwrap());
    let text = |max_leases| {
        format!(
            "[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\nenrolled = [\"{}\"]\n[[control.policy]]\npresenter \
             = \"*\"\nperms = [\"read\", \"write\", \"alloc\"]\nmax_leases = {max_leases}\nmax_bytes = \"1 MiB\"\n\
             [[control.policy]]\npresenter = \"{}\"\nperms = []\nmax_handles = 7\n[[region]]\nname = \"m\"\nkind = \
             \"memory\"\nsize = \"2 MiB\"\n{ADMIN}",
            identity.public_key(),
            identity.id(),
        )
    };
    let berth = Berth::start(&format!("[node]\nstate_dir = \"state\"\n{}", text(1)));
    let quic: SocketAddr = berth.ready["endpoints"]["quic"].as_str().unwrap().parse().unwrap();
    let client = Client::quic(identity.clone(), quic, None).await.unwrap();
    let token = client.cap_request(Perms::READ | Perms::WRITE | Perms::ALLOC, 300, 0, None).await.unwrap();
    let alloc = async || client.lease_alloc(&token, &Alloc::memory(4096, 60)).await;
    alloc().await.unwrap();
    let refused = alloc().await.unwrap_err();
    assert!(matches!(refused, Error::Refused { status: Status::CapacityExceeded, .. }), "{refused}");

    let (_, metrics) = get(admin(&berth), "/metrics", "");
    let shown = |name: &str, item: &str| {
        let line = format!("berth_control_holder_{name}{{holder=\"{}\",item=\"{item}\"}} ", identity.id());
        let value = metrics.lines().find_map(|found| found.strip_prefix(&line));
        value.unwrap_or_else(|| panic!("no line {line} in\n{metrics}")).parse::<f64>().unwrap()
    };
    let amounts = ["leases", "bytes", "handles"].map(|item| (shown("used", item), shown("quota", item)));
    assert_eq!(amounts, [(1.0, 1.0), (4096.0, 1_048_576.0), (0.0, 7.0)]);
    let mut status = Command::new(env!("CARGO_BIN_EXE_berth"));
    let status = status.args(["status", "--admin", &admin(&berth).to_string()]).output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    let words: Vec<_> = status.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert!(words.contains(&format!("{}_leases 1 of 1", identity.id())), "{status}");

    berth.write("berth.toml", &format!("[node]\nstate_dir = \"state\"\n{}", text(2)));
    berth.signal("-HUP");
    while alloc().await.is_err() {
        sleep(Duration::from_millis(20)).await;
    }
    alloc().await.unwrap_err();
}
