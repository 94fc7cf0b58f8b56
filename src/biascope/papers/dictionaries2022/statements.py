"""What chapter 5 and appendix C of the thesis say that can be tested: the denominator of what was reproduced.

The list was written from the printed text alone. Energy concentration means the share of an image's energy on the eigenfunctions
of the tangent kernel with large eigenvalues.
"""

from __future__ import annotations

from biascope.results.claim import Dropped, Statement

STATEMENTS = (
    Statement(
        "output_has_only_harmonics",
        "5.2, theorem 5.1",
        "With polynomial activations, the output has only frequencies that are integer combinations of the mapping's "
        "frequencies, with coefficients up to K^(L-1) in sum.",
    ),
    Statement(
        "support_grows_exponentially_with_depth",
        "5.1 and 5.2, theorem 5.1",
        "The highest order of the harmonics grows exponentially with the number of layers.",
    ),
    Statement(
        "filter_networks_have_the_same_support",
        "5.2",
        "Multiplicative filter networks too express only combinations of harmonics of their sinusoidal filters.",
    ),
    Statement(
        "few_parameters_for_many_coefficients",
        "5.2",
        "A network has far fewer parameters than its expansion has coefficients: O(T²L) against O(TK^L).",
        undecided="Superscripts are lost in our copy of the text, which has O(TKL). Read as TK^L, the rate is wrong: the exact count "
        "grows 14-fold when T doubles. The other half holds: there are far more coefficients than parameters.",
    ),
    Statement(
        "bessel_expansion",
        "5.2, equations 5.7 and 5.8",
        "The output of a three-layer SIREN is a sum of sinusoids. Their coefficients are products of Bessel functions of "
        "the inner weights.",
    ),
    Statement(
        "bessel_envelope_falls",
        "5.2, figure 5.2",
        "The envelope of a Bessel function of the first kind falls as its argument grows.",
    ),
    Statement(
        "high_orders_are_weak",
        "5.2",
        "Harmonics of high order have smaller coefficients than those of low order, so that most energy lies near the "
        "input frequencies.",
    ),
    Statement(
        "larger_inner_weights_widen_the_spectrum",
        "5.2, figure 5.2",
        "Larger inner weights give more power to harmonics of high order.",
    ),
    Statement(
        "unit_frequency_leaves_odd_coefficients_empty",
        "5.3.1, figure 5.3",
        "A network with the single mapping frequency 1 on [-1, 1]² reconstructs an image whose odd Fourier coefficients "
        "are all empty.",
    ),
    Statement(
        "unit_frequency_distorts_the_image",
        "5.3.1, figure 5.3",
        "The reconstruction with mapping frequency 1 is severely distorted: displaced copies of the image lie over one another.",
    ),
    Statement(
        "half_frequency_fills_all_coefficients",
        "5.3.1, figure 5.3",
        "With mapping frequency 0.5, all Fourier coefficients can have energy, and the artefact is gone.",
    ),
    Statement(
        "half_frequency_blurs",
        "5.3.1, figure 5.3",
        "The reconstruction with mapping frequency 0.5 is blurred: high frequencies are too weak.",
    ),
    Statement(
        "random_features_recover",
        "5.3.1, figure 5.3",
        "Many random mapping frequencies with a large spread (σ = 10) recover the image much better.",
    ),
    Statement(
        "frozen_siren_misses_frequencies_too",
        "C.2, figure C.1",
        "A SIREN whose first layer is frozen at one frequency shows the same imperfect recovery; a rich first layer does not.",
    ),
    Statement(
        "large_omega_aliases",
        "5.3.2, figure 5.4",
        "A SIREN with ω0 = 300 fits 128 samples of a sine of 23 Hz perfectly and has an additional peak at 105 Hz on a "
        "finer grid.",
    ),
    Statement(
        "small_omega_does_not_alias",
        "5.3.2, figure 5.4",
        "A SIREN with ω0 = 30 has no aliased copy of the signal.",
    ),
    Statement(
        "smallest_omega_has_energy_on_small_eigenvalues",
        "5.4, figure 5.5",
        "For a very small ω0, most energy of photographs lies on eigenfunctions with small eigenvalues.",
    ),
    Statement(
        "energy_rises_with_omega",
        "5.4, figure 5.5",
        "As ω0 grows to about 40, energy moves to eigenfunctions with large eigenvalues.",
    ),
    Statement(
        "energy_recedes_beyond_forty",
        "5.4, figure 5.5",
        "Beyond ω0 = 40, energy moves back to eigenfunctions with smaller eigenvalues.",
    ),
    Statement(
        "energy_orders_test_psnr",
        "5.4, figure 5.5",
        "The more energy lies on eigenfunctions with large eigenvalues, the higher is the test PSNR after training on "
        "half of the pixels.",
    ),
    Statement(
        "too_large_omega_generalises_worse",
        "5.4, figure 5.5",
        "A larger ω0 improves test PSNR up to an optimum; a too large ω0 reconstructs poorly.",
    ),
    Statement(
        "atoms_have_higher_frequencies_with_omega",
        "5.4, figure 5.6",
        "The eigenfunctions of SIRENs with a larger ω0 contain higher frequencies.",
    ),
    Statement(
        "energy_orders_speed",
        "5.4, figure 5.7",
        "Networks with a better energy concentration train faster and reach a better test PSNR within ten iterations.",
    ),
    Statement(
        "meta_learning_concentrates_energy",
        "5.4.1, figure 5.5",
        "Meta-learned weights put almost all energy of the images on the eigenfunctions with the largest eigenvalues.",
    ),
    Statement(
        "meta_learning_is_fastest",
        "5.4.1, figures 5.5 and 5.7",
        "Networks that start from meta-learned weights converge faster and generalise better than those from random weights.",
    ),
    Statement(
        "meta_learned_atoms_look_like_images",
        "5.4.1, figure 5.6",
        "The first eigenfunctions after meta-learning look like faces: they correlate strongly with the images of the set.",
    ),
    Statement(
        "meta_learning_reshapes_more_than_training",
        "5.4.1",
        "Meta-learning reshapes a much larger part of the kernel's eigenspaces than standard training, which changes the "
        "first few eigenfunctions.",
    ),
    Statement(
        "single_image_spreads_energy",
        "5.4.1, figure 5.8",
        "The longer a network is pre-trained on one image, the more energy of other images moves to small eigenvalues, "
        "below that of random weights.",
        undecided="The optimiser is not printed, and it decides the sign. With Adam at 1e-4 energy moves to small eigenvalues within "
        "10 iterations, and back after 500 on 64 × 64 pixels. With gradient descent at 1e-2 it moves the other way (figure 5.8 "
        "settings).",
    ),
    Statement(
        "single_image_hurts_psnr",
        "5.4.1, figure 5.8",
        "Pre-training on one image lowers the test PSNR on other images.",
    ),
    Statement(
        "energy_orders_psnr_of_ffn",
        "C.4.3, figure C.2",
        "For Fourier feature networks too, those with more energy on large eigenvalues have a much higher test PSNR.",
    ),
    Statement(
        "psnr_of_ffn",
        "C.4.3, figure C.2",
        "Test PSNR after three iterations is 12.24, 11.53, 11.76, 10.31 and 10.23 dB for σ = 0.1, 0.5, 1, 5 and 10, and "
        "9.13 dB for a ReLU MLP.",
    ),
    Statement(
        "meta_learning_helps_ffn",
        "C.5.3, figure C.2",
        "Meta-learning concentrates the energy of a Fourier feature network with σ = 1 and raises its test PSNR from "
        "11.76 to 17.31 dB.",
    ),
    Statement(
        "reptile_agrees_with_maml",
        "C.5.2, figure C.3",
        "Reptile concentrates energy and improves test PSNR as MAML does.",
    ),
)

DROPPED = (
    Dropped(
        "5.5, 5.6 meta-learned",
        "The energy is most concentrated near ω₀ = 40; faces have more energy on the first 10 atoms after meta-learning.",
        "1 reproduced, 1 not reproduced",
        "The thesis says neither where the energy is largest, nor of how many atoms, nor more than at random. The claims are ours now.",
    ),
    Dropped(
        "5.8",
        "Pre-training on one image shifts the energy of others to small eigenvalues: concentration after the longest minus before.",
        "not reproduced",
        "It looked at 1,000 iterations alone, where energy moves the other way; at 10 to 100 it moves as the thesis says. Each length "
        "has a claim now.",
    ),
    Dropped(
        "5.8",
        "It hurts fine-tuning: test PSNR after 10 iterations, longest pre-training minus none.",
        "inconclusive",
        "It looked at 1,000 iterations alone. The new claims look at every length, after 3 and after 10 iterations.",
    ),
    Dropped(
        "C.2",
        "Test PSNR after 3 iterations is the published one within 1.5 dB (six networks).",
        "2 reproduced, 4 inconclusive",
        "It compared a mean over 16 draws of the initial weights with numbers that are probably of one draw. Figure C.2 draws compares "
        "them with the spread of single draws.",
    ),
    Dropped(
        "C.2",
        "Networks whose energy is more concentrated perform better: a positive rank correlation with the test PSNR after 3 iterations.",
        "inconclusive",
        "It ranked means over 16 draws, and one network had not trained in all of them. Figure C.2 draws ranks the networks draw by "
        "draw.",
    ),
)
