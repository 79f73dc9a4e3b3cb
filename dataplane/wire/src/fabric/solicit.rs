//! SOLICIT: asks for announcements that match filters (section "SOLICIT filters").

use super::{
    Announce,
    codec::{FabricError, List, Reader, Wire},
    macros::{codes, wire},
};

/// Limit on the filters of one SOLICIT.
pub const MAX_FILTERS: usize = 32;
/// `query_type` for announcements, the only one defined.
pub const QUERY_INVENTORY: u8 = 0;

codes! {
    /// The field of an announcement that a filter compares.
    pub enum FilterField: u8 {
        ResourceType = 1, "RESOURCE_TYPE", "a resource's type: EQ";
        NodeId = 2, "NODE_ID", "the node's id: EQ";
        SiteId = 3, "SITE_ID", "the site: EQ, GT, LT";
        RowId = 4, "ROW_ID", "the row: EQ, GT, LT";
        RackId = 5, "RACK_ID", "the rack: EQ, GT, LT";
        LocalityCustom = 6, "LOCALITY_CUSTOM", "the 32 free bytes: EQ, CONTAINS (non-zero bytes must match)";
        ResourceFlags = 7, "RESOURCE_FLAGS", "a resource's flags: EQ, CONTAINS (all bits set)";
    }

    /// The comparison that a filter makes.
    pub enum FilterOp: u8 {
        Eq = 0, "EQ", "is the value";
        Gt = 1, "GT", "is greater than the value";
        Lt = 2, "LT", "is less than the value";
        Contains = 3, "CONTAINS", "has the value's bits or bytes";
    }
}

wire! {
    /// One filter, 34 bytes: field (1), op (1), value (32).
    pub struct Filter {
        /// A [`FilterField`] code; unknown ones match nothing.
        pub field: u8,
        /// A [`FilterOp`] code; unknown ones match nothing.
        pub op: u8,
        /// Left-aligned, big-endian. Bytes that the field does not use are ignored.
        pub value: [u8; 32],
    }
}

impl Filter {
    /// Pads `value`, of at most 32 bytes, with zeros.
    pub fn new(field: FilterField, op: FilterOp, value: &[u8]) -> Self {
        let mut filter = Self { field: field.code(), op: op.code(), value: [0; 32] };
        filter.value.iter_mut().zip(value).for_each(|(to, from)| *to = *from);
        filter
    }

    fn front<'a, T: Wire<'a>>(&'a self) -> Option<T> {
        T::read(&mut Reader::new(&self.value)).ok()
    }

    /// Whether it applies to one resource rather than to the node.
    fn of_resource(&self) -> bool {
        [FilterField::ResourceType.code(), FilterField::ResourceFlags.code()].contains(&self.field)
    }

    fn matches_node(&self, node: &Announce<'_>) -> bool {
        let ordered = |found: u32| match (FilterOp::from_code(self.op), self.front::<u32>()) {
            (Some(FilterOp::Eq), Some(wanted)) => found == wanted,
            (Some(FilterOp::Gt), Some(wanted)) => found > wanted,
            (Some(FilterOp::Lt), Some(wanted)) => found < wanted,
            _ => false,
        };
        match (FilterField::from_code(self.field), FilterOp::from_code(self.op)) {
            (Some(FilterField::NodeId), Some(FilterOp::Eq)) => self.front() == Some(node.node_id),
            (Some(FilterField::SiteId), _) => ordered(node.site),
            (Some(FilterField::RowId), _) => ordered(node.row),
            (Some(FilterField::RackId), _) => ordered(node.rack),
            (Some(FilterField::LocalityCustom), Some(FilterOp::Eq)) => self.value == node.locality_custom,
            (Some(FilterField::LocalityCustom), Some(FilterOp::Contains)) => {
                self.value.iter().zip(&node.locality_custom).all(|(mask, byte)| *mask == 0 || mask == byte)
            }
            _ => false,
        }
    }

    fn matches_resource(&self, resource_type: u16, flags: u16) -> bool {
        let Some(wanted) = self.front::<u16>() else { return false };
        match (FilterField::from_code(self.field), FilterOp::from_code(self.op)) {
            (Some(FilterField::ResourceType), Some(FilterOp::Eq)) => resource_type == wanted,
            (Some(FilterField::ResourceFlags), Some(FilterOp::Eq)) => flags == wanted,
            (Some(FilterField::ResourceFlags), Some(FilterOp::Contains)) => flags & wanted == wanted,
            _ => false,
        }
    }
}

/// Payload of SOLICIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Solicit<'a> {
    /// All must match.
    pub filters: List<'a, Filter, MAX_FILTERS>,
    /// Zero bytes behind the filters. An unsigned SOLICIT must be as long as its answer (decision 23).
    pub padding: usize,
}

impl Solicit<'_> {
    /// Whether a node's announcement is wanted: the node matches the filters on nodes, and at least one of its
    /// resources matches all filters on resources.
    pub fn matches(&self, node: &Announce<'_>) -> bool {
        let of_resource = || self.filters.iter().filter(Filter::of_resource);
        self.filters.iter().filter(|filter| !filter.of_resource()).all(|filter| filter.matches_node(node))
            && (of_resource().next().is_none()
                || node.resources.iter().any(|resource| {
                    of_resource().all(|filter| filter.matches_resource(resource.resource_type, resource.flags.bits()))
                }))
    }
}

impl<'a> Wire<'a> for Solicit<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        if from.get::<u8>()? != QUERY_INVENTORY {
            return Err(FabricError::Value("query_type (0)"));
        }
        let filters = from.get()?;
        let padding = from.rest();
        if padding.iter().any(|byte| *byte != 0) {
            return Err(FabricError::Surplus);
        }
        Ok(Self { filters, padding: padding.len() })
    }

    fn write(&self, to: &mut Vec<u8>) {
        QUERY_INVENTORY.write(to);
        self.filters.write(to);
        to.resize(to.len() + self.padding, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            ResourceFlags, ResourceSummary,
            testing::{exact, exact_but, hex},
        },
        *,
    };

    #[test]
    fn solicitations_are_laid_out_as_documented() {
        let rack = [Filter::new(FilterField::RackId, FilterOp::Gt, &7_u32.to_be_bytes())];
        let bytes = format!("00 0001 05 01 00000007 {}", "00".repeat(28));
        let solicit = Solicit { filters: List::of(&rack).unwrap(), padding: 0 };
        exact(&solicit, &bytes);
        exact_but(&Solicit { padding: 2, ..solicit }, &format!("{bytes} 0000"), &[37, 38]);
        assert_eq!(Solicit::parse(&hex("01 0000")), Err(FabricError::Value("query_type (0)")));
        assert_eq!(Solicit::parse(&hex("00 0000 0001")), Err(FabricError::Surplus));
        assert_eq!(Solicit::parse(&hex("00 0021")), Err(FabricError::Limit("list")));
    }

    fn matches(node: &Announce<'_>, filters: &[Filter]) -> bool {
        Solicit { filters: List::of(filters).unwrap(), padding: 0 }.matches(node)
    }

    #[test]
    fn every_field_and_op_matches_as_documented() {
        let resource = |resource_type, flags| ResourceSummary {
            resource_id: 1,
            resource_type,
            flags: ResourceFlags::from_bits(flags).unwrap(),
            capacity: 1,
            available: 1,
        };
        let resources = [resource(2, 2), resource(3, 3)];
        let mut locality_custom = [0; 32];
        locality_custom[..4].copy_from_slice(b"row7");
        let node = Announce {
            node_id: 9,
            sequence: 1,
            ttl_secs: 60,
            site: 10,
            row: 20,
            rack: 30,
            locality_custom,
            endpoints: List::EMPTY,
            resources: List::of(&resources).unwrap(),
            tlvs: List::EMPTY,
        };
        let one = |field, op, value: &[u8]| matches(&node, &[Filter::new(field, op, value)]);
        let word = |value: u32| value.to_be_bytes();
        assert!(matches(&node, &[]));
        assert!(one(FilterField::NodeId, FilterOp::Eq, &9_u128.to_be_bytes()));
        assert!(!one(FilterField::NodeId, FilterOp::Eq, &8_u128.to_be_bytes()));
        for (field, found) in [(FilterField::SiteId, 10), (FilterField::RowId, 20), (FilterField::RackId, 30)] {
            for (op, value, expected) in [
                (FilterOp::Eq, found, true),
                (FilterOp::Eq, found + 1, false),
                (FilterOp::Gt, found - 1, true),
                (FilterOp::Gt, found, false),
                (FilterOp::Lt, found + 1, true),
                (FilterOp::Lt, found, false),
                (FilterOp::Contains, found, false),
            ] {
                assert_eq!(one(field, op, &word(value)), expected, "{field} {op} {value}");
            }
        }
        assert!(one(FilterField::LocalityCustom, FilterOp::Eq, b"row7"));
        assert!(!one(FilterField::LocalityCustom, FilterOp::Eq, b"row"));
        assert!(one(FilterField::LocalityCustom, FilterOp::Contains, b"\0o\x007"));
        assert!(!one(FilterField::LocalityCustom, FilterOp::Contains, b"o"));
        assert!(one(FilterField::ResourceType, FilterOp::Eq, &[0, 3]));
        assert!(!one(FilterField::ResourceType, FilterOp::Eq, &[0, 5]));
        assert!(one(FilterField::ResourceFlags, FilterOp::Eq, &[0, 2]));
        assert!(!one(FilterField::ResourceFlags, FilterOp::Eq, &[0, 1]));
        assert!(one(FilterField::ResourceFlags, FilterOp::Contains, &[0, 1]));
        assert!(!one(FilterField::ResourceFlags, FilterOp::Contains, &[0, 4]));
        let fenced = Filter::new(FilterField::ResourceFlags, FilterOp::Contains, &[0, 1]);
        let of_type = |code: u8| Filter::new(FilterField::ResourceType, FilterOp::Eq, &[0, code]);
        assert!(matches(&node, &[of_type(3), fenced]));
        assert!(!matches(&node, &[of_type(2), fenced]), "one resource must fulfil both");
        let both = Filter::new(FilterField::ResourceFlags, FilterOp::Contains, &[0, 3]);
        assert!(matches(&node, &[of_type(3), both]));
        assert!(!matches(&node, &[of_type(2), both]), "all bits must be set");
        let mut noise = of_type(3);
        noise.value[2..].fill(0xFF);
        assert!(matches(&node, &[noise]), "bytes that are not used are ignored");
        for (field, op) in [(0, 0), (8, 0), (0x40, 0), (3, 4), (1, 1), (2, 3), (7, 1)] {
            assert!(!matches(&node, &[Filter { field, op, value: [0; 32] }]), "{field} {op}");
        }
    }
}
