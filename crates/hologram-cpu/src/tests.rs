//! The tests of private items, which `tests/unit.rs` runs.
//!
//! They are a part of the library with the feature `testing`, which the tests of the workspace turn on: as unit tests
//! they would need a second compilation of this crate, which takes longer than that of any other.

/// Calls a macro with the tests of each module. A test that is missing here is dead code, which the compiler warns of.
#[macro_export]
#[doc(hidden)]
macro_rules! with_tests {
    ($each:ident) => {
        $each! {
            backend = backend::tests { experts_have_no_tiles }
            exec_words = exec::words::tests { integer_division narrow_floats integers_round_once_to_bf16 }
            features = features::tests { a_limit_only_takes_away }
            attention = native::attention::tests {
                agrees_with_the_definition independent_tokens_do_not_depend_on_others names_what_lies_outside
                leaves_other_layouts_to_the_program
            }
            batch_matmul = native::batch_matmul::tests {
                products_of_every_type_are_exact_for_any_number_of_workers the_number_of_workers_changes_no_bit
            }
            biased = native::biased::tests { agrees_with_the_definition }
            cast = native::cast::tests { rounds_to_nearest_even rounds_as_one_number_does }
            copy = native::copy::tests { copies_every_byte_and_no_other }
            elementwise = native::elementwise::tests { operands_repeat agrees_with_the_definition non_temporal_stores_give_the_same }
            gather = native::gather::tests { decodes_rows_of_every_format }
            kv_append = native::kv_append::tests { stores_each_head_in_its_slot }
            matmul = native::matmul::tests {
                groups_of_32 groups_of_32_with_other_blocks floats_of_4_bits_and_grids super_blocks ternary_groups
                float_activations infinities_are_as_in_f32 experts_multiply_their_slots independent_tokens_do_not_depend_on_others
                what_is_not_served
            }
            narrow = native::narrow::tests { agrees_with_single_conversions }
            quantize = native::quantize::tests { matches_the_definition }
            reduce = native::reduce::tests {
                a_nan_is_the_greatest_and_the_least the_first_nan_is_the_greatest_and_the_least lines_are_reduced
            }
            rms_norm = native::rms_norm::tests { agrees_with_the_definition earlier_rows_are_stored_meanwhile }
            rope = native::rope::tests { agrees_with_the_definition }
            simd = native::simd::tests { powers_are_within_two_ulp }
            softmax = native::softmax::tests { agrees_with_the_definition an_earlier_row_is_stored_meanwhile }
            sort = native::sort::tests { lines_are_sorted_stably }
            openmp = openmp::tests { lent_threads_do_the_work }
            pool = pool::tests { every_phase_sees_all_of_the_phases_before a_failure_ends_the_job_after_its_phase }
            queue_tests = queue_tests {
                workers_divide_phases_and_meet_between_them a_profile_runs_every_launch_once
                a_list_keeps_its_buffers_and_runs_again threads_may_submit_at_the_same_time
                a_failed_kernel_stops_its_list_and_what_follows_from_it wrong_arguments_are_refused_when_recorded
                arguments_that_are_written_overlap_no_other devices_do_not_share_buffers_or_lists
                copies_are_checked_and_counted absurd_options_are_refused
            }
        }
    };
}

macro_rules! public {
    ($($module:ident = $($path:ident)::+ { $($test:ident)+ })+) => {$(
        pub mod $module {
            use crate::$($path)::+ as here;

            $(pub fn $test() {
                here::$test();
            })+
        }
    )+};
}

with_tests!(public);
