//! The codes of errors, `hipError_t`.

/// An error code; 0 is success. Any number can be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(pub i32);

macro_rules! codes {
    ($($name:ident = $code:literal $spelt:literal $text:literal,)*) => {
        impl Code {
            $(#[doc = $text] pub const $name: Self = Self($code);)*

            /// The name and the meaning, of those that there are names of.
            pub fn describe(self) -> Option<(&'static str, &'static str)> {
                Some(match self.0 {
                    $($code => (concat!("hip", $spelt), $text),)*
                    _ => return None,
                })
            }
        }
    };
}

codes! {
    SUCCESS = 0 "Success" "no error",
    INVALID_VALUE = 1 "ErrorInvalidValue" "invalid argument",
    OUT_OF_MEMORY = 2 "ErrorOutOfMemory" "out of memory, or of a session's quota",
    NOT_INITIALIZED = 3 "ErrorNotInitialized" "not initialized",
    INVALID_CONFIGURATION = 9 "ErrorInvalidConfiguration" "invalid shape of a launch",
    INVALID_PITCH = 12 "ErrorInvalidPitchValue" "invalid pitch",
    INVALID_DEVICE_POINTER = 17 "ErrorInvalidDevicePointer" "no device pointer",
    INVALID_DIRECTION = 21 "ErrorInvalidMemcpyDirection" "invalid direction of a copy",
    NO_DEVICE = 100 "ErrorNoDevice" "no device",
    INVALID_DEVICE = 101 "ErrorInvalidDevice" "no such device",
    INVALID_IMAGE = 200 "ErrorInvalidImage" "no code object",
    INVALID_CONTEXT = 201 "ErrorInvalidContext" "invalid context",
    NO_BINARY = 209 "ErrorNoBinaryForGpu" "a code object of another device",
    UNSUPPORTED_LIMIT = 215 "ErrorUnsupportedLimit" "no such limit",
    PEER_UNSUPPORTED = 217 "ErrorPeerAccessUnsupported" "no access between these devices",
    INVALID_KERNEL_FILE = 218 "ErrorInvalidKernelFile" "a code object that the device does not run",
    INVALID_HANDLE = 400 "ErrorInvalidHandle" "no such handle",
    ILLEGAL_STATE = 401 "ErrorIllegalState" "not in this state",
    NOT_FOUND = 500 "ErrorNotFound" "no such name",
    NOT_READY = 600 "ErrorNotReady" "not finished",
    ILLEGAL_ADDRESS = 700 "ErrorIllegalAddress" "a kernel touched memory that it may not",
    OUT_OF_RESOURCES = 701 "ErrorLaunchOutOfResources" "a launch takes more than the device has",
    TIMED_OUT = 702 "ErrorLaunchTimeOut" "a kernel ran for too long",
    PEER_ENABLED = 704 "ErrorPeerAccessAlreadyEnabled" "the access is enabled already",
    PEER_NOT_ENABLED = 705 "ErrorPeerAccessNotEnabled" "the access is not enabled",
    CONTEXT_DESTROYED = 709 "ErrorContextIsDestroyed" "the session is over",
    MISALIGNED = 716 "ErrorMisalignedAddress" "a kernel used an address that is not aligned",
    LAUNCH_FAILURE = 719 "ErrorLaunchFailure" "a kernel trapped or broke a rule",
    NOT_SUPPORTED = 801 "ErrorNotSupported" "not served",
    CAPTURE_UNSUPPORTED = 900 "ErrorStreamCaptureUnsupported" "not while a stream is captured",
    CAPTURE_UNMATCHED = 903 "ErrorStreamCaptureUnmatched" "no capture was begun",
    UNKNOWN = 999 "ErrorUnknown" "unknown error",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_their_names() {
        assert_eq!(Code::SUCCESS.describe().unwrap().0, "hipSuccess");
        assert_eq!(Code(716).describe().unwrap().0, "hipErrorMisalignedAddress");
        assert_eq!(Code(-1).describe(), None);
    }
}
