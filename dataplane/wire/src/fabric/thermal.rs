//! Result of GET_THERMAL: TLVs 0x0900 to 0x0905. An absent TLV means that the platform does not support it.

use super::{
    codec::{FabricError, Reader, Wire},
    macros::codes,
    tlv::{Tlv, Tlvs},
};

codes! {
    /// `soc_status` and `nvme_status`.
    pub enum SensorStatus: u8 {
        Ok = 0, "OK", "read lately";
        Unavailable = 1, "Unavailable", "cannot be read";
        Stale = 2, "Stale", "read too long ago";
    }
}

/// A temperature in thousandths of a degree Celsius, from -40 000 to 150 000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MilliCelsius(i32);

impl MilliCelsius {
    /// `None` if outside the range.
    pub fn new(milli_c: i32) -> Option<Self> {
        (-40_000..=150_000).contains(&milli_c).then_some(Self(milli_c))
    }

    /// Thousandths of a degree Celsius.
    pub fn get(self) -> i32 {
        self.0
    }
}

impl<'a> Wire<'a> for MilliCelsius {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        Self::new(from.get()?).ok_or(FabricError::Value("temperature"))
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.0.write(to);
    }
}

/// Temperatures of a node; `None` if the platform does not report one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Thermal {
    /// 0x0900: milliseconds from the sampling of the sensors to the answer.
    pub age_ms: Option<u32>,
    /// 0x0901: temperature of the processor package.
    pub soc_temp: Option<MilliCelsius>,
    /// 0x0902: condition of the processor's sensor.
    pub soc_status: Option<SensorStatus>,
    /// 0x0903, bit 0: the processor is throttled by heat. The other bits are reserved.
    pub throttled: Option<bool>,
    /// 0x0904: temperature of the NVMe device.
    pub nvme_temp: Option<MilliCelsius>,
    /// 0x0905: condition of the NVMe device's sensor.
    pub nvme_status: Option<SensorStatus>,
}

impl<'a> Wire<'a> for Thermal {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        let tlvs: Tlvs<'a> = from.get()?;
        let mut thermal = Self::default();
        for tlv in tlvs {
            match tlv.tag {
                0x0900 => thermal.age_ms = Some(tlv.parse_value()?),
                0x0901 => thermal.soc_temp = Some(tlv.parse_value()?),
                0x0902 => thermal.soc_status = Some(tlv.parse_value()?),
                0x0903 => thermal.throttled = Some(tlv.parse_value::<u8>()? & 1 == 1),
                0x0904 => thermal.nvme_temp = Some(tlv.parse_value()?),
                0x0905 => thermal.nvme_status = Some(tlv.parse_value()?),
                _ => {}
            }
        }
        Ok(thermal)
    }

    fn write(&self, to: &mut Vec<u8>) {
        fn put<'v, T: Wire<'v>>(to: &mut Vec<u8>, tag: u16, value: Option<T>) {
            if let Some(value) = value {
                Tlv::append(to, tag, |to| value.write(to));
            }
        }
        put(to, 0x0900, self.age_ms);
        put(to, 0x0901, self.soc_temp);
        put(to, 0x0902, self.soc_status);
        put(to, 0x0903, self.throttled);
        put(to, 0x0904, self.nvme_temp);
        put(to, 0x0905, self.nvme_status);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::hex, *};

    const ALL: &str = "0900 0004 00000064  0901 0004 0000b3b0  0902 0001 00  0903 0001 01
                       0904 0004 ffffff9c  0905 0001 02";

    #[test]
    fn temperatures_are_laid_out_as_documented() {
        let all = Thermal {
            age_ms: Some(100),
            soc_temp: MilliCelsius::new(46_000),
            soc_status: Some(SensorStatus::Ok),
            throttled: Some(true),
            nvme_temp: MilliCelsius::new(-100),
            nvme_status: Some(SensorStatus::Stale),
        };
        assert_eq!(all.to_vec(), hex(ALL));
        assert_eq!(Thermal::parse(&hex(ALL)), Ok(all));
        assert_eq!(Thermal::parse(&[]), Ok(Thermal::default()));
        let unknown = format!("09ff 0002 abcd {ALL}");
        assert_eq!(Thermal::parse(&hex(&unknown)), Ok(all));
    }

    #[test]
    fn temperatures_out_of_bounds_and_wrong_lengths_are_malformed() {
        for (bytes, error) in [
            ("0901 0004 000249f1", FabricError::Value("temperature")),
            ("0904 0004 ffff63bf", FabricError::Value("temperature")),
            ("0902 0001 03", FabricError::Value("SensorStatus")),
            ("0900 0003 000000", FabricError::Truncated),
            ("0900 0005 0000000000", FabricError::Surplus),
            ("0900 0004 000000", FabricError::Truncated),
        ] {
            assert_eq!(Thermal::parse(&hex(bytes)), Err(error), "{bytes}");
        }
        assert_eq!(MilliCelsius::new(150_000).map(MilliCelsius::get), Some(150_000));
        assert_eq!(MilliCelsius::new(-40_000).map(MilliCelsius::get), Some(-40_000));
    }
}
