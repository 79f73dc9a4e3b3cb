//! Temperatures from the kernel's thermal zones and hardware monitors.

use std::{ops::RangeInclusive, path::Path};

use crate::facts::{entries, number, read};

/// Range of temperatures that are passed on, in thousandths of a degree Celsius: `GET_THERMAL` calls others malformed.
const PLAUSIBLE: RangeInclusive<i32> = -40_000..=150_000;

/// The reading of an existing sensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sensor {
    /// Thousandths of a degree Celsius, from -40 000 to 150 000.
    MilliCelsius(i32),
    /// The sensor returned an error, or an impossible temperature.
    Unavailable,
}

/// Temperatures at one moment; `None` if the machine has no such sensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Thermal {
    /// Hottest processor package.
    pub soc: Option<Sensor>,
    /// Hottest `NVMe` device.
    pub nvme: Option<Sensor>,
    /// Whether the processors are throttled by heat.
    pub throttled: Option<bool>,
}

impl Thermal {
    /// Reads all sensors; `sys` is the mount point of sysfs. May wait some milliseconds for a device.
    pub fn read(sys: &Path) -> Self {
        let is_soc = |kind: &str| {
            matches!(kind, "x86_pkg_temp" | "coretemp" | "k10temp" | "zenpower")
                || ["cpu", "soc"].iter().any(|prefix| kind.starts_with(prefix))
        };
        let class = sys.join("class");
        let (mut soc, mut nvme, mut throttled) = (None, None, None);
        for dir in entries(&class.join("thermal")) {
            let Some(kind) = read(&dir, "type") else { continue };
            if dir.join("temp").exists() && is_soc(&kind) {
                soc = Some(hottest(soc, sensor(&dir, "temp")));
            } else if let (true, Some(state)) =
                (kind == "Processor" || kind.starts_with("cpufreq"), number::<u32>(&dir, "cur_state"))
            {
                throttled = Some(throttled == Some(true) || state > 0);
            }
        }
        for dir in entries(&class.join("hwmon")) {
            let Some(name) = read(&dir, "name") else { continue };
            let input = "temp1_input";
            if !dir.join(input).exists() {
                continue;
            }
            if name == "nvme" {
                nvme = Some(hottest(nvme, sensor(&dir, input)));
            } else if is_soc(&name) {
                soc = Some(hottest(soc, sensor(&dir, input)));
            }
        }
        Self { soc, nvme, throttled }
    }
}

fn sensor(dir: &Path, file: &str) -> Sensor {
    number(dir, file).filter(|milli| PLAUSIBLE.contains(milli)).map_or(Sensor::Unavailable, Sensor::MilliCelsius)
}

/// The hotter of two sensors, or the one that works.
fn hottest(one: Option<Sensor>, other: Sensor) -> Sensor {
    match (one, other) {
        (Some(Sensor::MilliCelsius(one)), Sensor::MilliCelsius(other)) => Sensor::MilliCelsius(one.max(other)),
        (Some(one @ Sensor::MilliCelsius(_)), Sensor::Unavailable) => one,
        (_, other) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_tree::tree;

    #[test]
    fn a_machine_without_sensors_has_none() {
        assert_eq!(Thermal::read(tree(&[("class/net/lo/mtu", "65536")]).path()), Thermal::default());
    }

    #[test]
    fn the_hottest_of_each_kind() {
        let sys = tree(&[
            ("class/thermal/thermal_zone0/type", "acpitz"),
            ("class/thermal/thermal_zone0/temp", "99000"),
            ("class/thermal/thermal_zone1/type", "x86_pkg_temp"),
            ("class/thermal/thermal_zone1/temp", "45000"),
            ("class/thermal/cooling_device0/type", "Processor"),
            ("class/thermal/cooling_device0/cur_state", "0"),
            ("class/thermal/cooling_device1/type", "Processor"),
            ("class/thermal/cooling_device1/cur_state", "3"),
            ("class/thermal/cooling_device2/type", "Processor"),
            ("class/thermal/cooling_device2/cur_state", "0"),
            ("class/hwmon/hwmon0/name", "k10temp"),
            ("class/hwmon/hwmon0/temp1_input", "51250"),
            ("class/hwmon/hwmon1/name", "nvme"),
            ("class/hwmon/hwmon1/temp1_input", "-1000"),
            ("class/hwmon/hwmon2/name", "nvme"),
            ("class/hwmon/hwmon2/temp1_input", "150001"),
        ]);
        let expected = Thermal {
            soc: Some(Sensor::MilliCelsius(51_250)),
            nvme: Some(Sensor::MilliCelsius(-1000)),
            throttled: Some(true),
        };
        assert_eq!(Thermal::read(sys.path()), expected);
    }

    #[test]
    fn a_sensor_that_fails_is_not_a_missing_one() {
        for temperature in ["", "hot", "-40001", "150001"] {
            let sys = tree(&[("class/hwmon/hwmon0/name", "coretemp"), ("class/hwmon/hwmon0/temp1_input", temperature)]);
            assert_eq!(Thermal::read(sys.path()), Thermal { soc: Some(Sensor::Unavailable), ..Thermal::default() });
        }
    }
}
