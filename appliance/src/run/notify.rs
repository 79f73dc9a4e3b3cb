//! What the service manager is told, where there is one: `$NOTIFY_SOCKET` and `$WATCHDOG_USEC` of systemd.

use std::time::Duration;

use sd_notify::NotifyState;
use tracing::warn;

/// How often the service manager wants to hear from us, at least; `None` where it does not.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// The configuration is being read again; [`ready`] ends it.
pub(super) fn reloading() {
    // The time tells this reload from one that was asked for later.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(e) => warn!("the service manager cannot be told: {e}"),
    }
}

/// Everything is open and served.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Every thread goes round its loop.
pub(super) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// What a person sees in `systemctl status`.
pub(super) fn status(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// No more requests are taken.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

fn tell(states: &[NotifyState<'_>]) {
    // Without a service manager this does nothing and succeeds.
    if let Err(e) = sd_notify::notify(states) {
        warn!("the service manager cannot be told: {e}");
    }
}
