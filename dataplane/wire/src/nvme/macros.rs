//! Definitions of structures by the offsets of their fields.

/// Defines structures as they lie on the wire. Each field has its offset in bytes before it, which is checked at compile
/// time, as the length is.
macro_rules! layout {
    ($($(#[$meta:meta])* $struct_vis:vis struct $name:ident: $len:literal {
        $($(#[$doc:meta])* $at:literal $vis:vis $field:ident: $ty:ty,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(C)]
        $struct_vis struct $name {
            $($(#[$doc])* $vis $field: $ty,)*
        }

        #[allow(dead_code)] // a private structure needs what its module uses
        impl $name {
            /// Bytes.
            $struct_vis const LEN: usize = $len;

            /// All bytes zero.
            $struct_vis fn zeroed() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }

            /// The structure at the front of `bytes`; `None` where it is cut short.
            #[inline]
            $struct_vis fn parse(bytes: &[u8]) -> Option<&Self> {
                Some(<Self as zerocopy::FromBytes>::ref_from_prefix(bytes).ok()?.0)
            }
        }

        const _: () = {
            $(assert!(core::mem::offset_of!($name, $field) == $at);)*
            assert!(size_of::<$name>() == $len);
        };
    )*};
}
pub(crate) use layout;
