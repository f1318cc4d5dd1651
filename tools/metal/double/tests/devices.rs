//! The tests of every device's memory, recording and queue, on the Metal backend.

use metal_double as _;

#[path = "../../../../crates/hologram-backends/tests/common/devices.rs"]
#[macro_use]
mod common;

devices! {
    metal, "metal",;
}
