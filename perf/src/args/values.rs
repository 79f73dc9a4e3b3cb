//! Values of options: their forms and bounds, and what is said of others.

use std::{net::IpAddr, str::FromStr, time::Duration};

use berth_port::{FaultSpec, Faults};
use berth_wire::net::MacAddr;

/// An option of `--fault`.
#[derive(Debug, Clone, PartialEq)]
pub struct FaultArg {
    /// As it was given.
    pub text: String,
    /// What it means; without `rx.` or `tx.` a fault is of both directions.
    pub spec: FaultSpec,
}

impl FromStr for FaultArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut spec = FaultSpec::default();
        for fault in text.split(',') {
            let (key, value) =
                fault.split_once('=').ok_or_else(|| format!("{fault:?} is not of the form drop=0.01"))?;
            if key == "seed" {
                spec.seed = value.parse().map_err(|_| format!("seed={value}: a whole number"))?;
                continue;
            }
            let (sides, key) = match key.split_once('.') {
                Some(("rx", key)) => (vec![&mut spec.rx], key),
                Some(("tx", key)) => (vec![&mut spec.tx], key),
                _ => (vec![&mut spec.rx, &mut spec.tx], key),
            };
            for faults in sides {
                set_fault(faults, key, value)?;
            }
        }
        Ok(Self { text: text.into(), spec })
    }
}

fn set_fault(faults: &mut Faults, key: &str, value: &str) -> Result<(), String> {
    let probability = match key {
        "delay_us" => {
            let (shortest, longest) = value.split_once('-').unwrap_or((value, value));
            let range = shortest.parse().ok().zip(longest.parse().ok()).filter(|(from, to)| from <= to);
            let (shortest, longest) =
                range.ok_or_else(|| format!("delay_us={value}: microseconds, as 100 or 50-200"))?;
            faults.delay_us = [shortest, longest];
            return Ok(());
        }
        "drop" => &mut faults.drop,
        "corrupt" => &mut faults.corrupt,
        "duplicate" => &mut faults.duplicate,
        "reorder" => &mut faults.reorder,
        "delay" => &mut faults.delay,
        _ => return Err(format!("{key} is none of drop, corrupt, duplicate, reorder, delay, delay_us, seed")),
    };
    let parsed = value.parse().ok().filter(|p| (0.0..=1.0).contains(p));
    *probability = parsed.ok_or_else(|| format!("{key}={value}: a probability from 0 to 1"))?;
    Ok(())
}

pub(super) fn cidr(text: &str) -> Result<(IpAddr, u8), String> {
    let parsed = text.split_once('/').and_then(|(ip, prefix)| Some((ip.parse().ok()?, prefix.parse().ok()?)));
    parsed
        .filter(|(ip, prefix): &(IpAddr, u8)| *prefix <= if ip.is_ipv4() { 32 } else { 128 })
        .ok_or_else(|| "an address with its prefix length, as 10.0.0.1/24".into())
}

pub(super) fn neighbour(text: &str) -> Result<(IpAddr, MacAddr), String> {
    let parsed = text.split_once('=').and_then(|(ip, mac)| Some((ip.parse().ok()?, mac.parse().ok()?)));
    parsed.ok_or_else(|| "an address and its MAC address, as 10.0.0.2=02:00:00:00:00:01".into())
}

pub(super) fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| format!("{text} is no number of seconds"))?;
    if !(0.0..=86_400.0).contains(&seconds) {
        return Err("choose at most a day, 86400 seconds".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    seconds_or_none(text)
        .and_then(|time| if time.is_zero() { Err("choose more than 0 seconds".into()) } else { Ok(time) })
}

pub(super) fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().map_err(|_| format!("{text} is no number of per cent"))?;
    if (0.0..=1000.0).contains(&percent) { Ok(percent) } else { Err("choose from 0 to 1000 per cent".into()) }
}

pub(super) fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().map_err(|_| format!("{text} is no number of requests per second"))?;
    if (0.01..=1e9).contains(&rate) { Ok(rate) } else { Err("choose from 0.01 to 1e9 requests per second".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_befall_both_directions_or_one() {
        let FaultArg { spec, .. } = "drop=0.01,seed=7,tx.duplicate=0.5,rx.delay=1,delay_us=50-200".parse().unwrap();
        let both = Faults { drop: 0.01, delay_us: [50, 200], ..Faults::default() };
        assert_eq!(spec.rx, Faults { delay: 1.0, ..both });
        assert_eq!(spec.tx, Faults { duplicate: 0.5, ..both });
        assert_eq!(spec.seed, 7);
        for bad in ["drop", "drop=2", "drop=x", "explode=1", "xx.drop=1", "delay_us=5-1", "seed=-1", ""] {
            assert!(bad.parse::<FaultArg>().is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_and_neighbours_are_read() {
        assert_eq!(cidr("10.0.0.1/24"), Ok(("10.0.0.1".parse().unwrap(), 24)));
        assert_eq!(neighbour("fe80::1=02:00:00:00:00:0a").unwrap().1, MacAddr([2, 0, 0, 0, 0, 10]));
        assert!(["10.0.0.1", "10.0.0.1/33", "x/8"].iter().all(|bad| cidr(bad).is_err()));
        assert!(["10.0.0.1", "10.0.0.1=2"].iter().all(|bad| neighbour(bad).is_err()));
    }

    #[test]
    fn times_and_rates_have_bounds() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(seconds_or_none("0"), Ok(Duration::ZERO));
        assert!(["0", "-1", "nan", "1e9", "x"].iter().all(|bad| seconds(bad).is_err()));
        assert!(["0", "-1", "nan", "inf", "x"].iter().all(|bad| rate(bad).is_err()));
    }
}
