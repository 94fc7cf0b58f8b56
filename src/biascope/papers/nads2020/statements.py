"""What the paper says that can be tested, and the claims that were withdrawn.

The list was written from the printed text, the supplement and chapter 3 of the thesis, before our claims were read again. It includes
statements for which there is no code.
"""

from __future__ import annotations

from biascope.results.claim import Dropped, Statement

STATEMENTS = (
    Statement(
        "logistic_regression_everywhere",
        "1, figure 1; A.2.2, figure S11",
        "Logistic regression generalises perfectly on every Fourier direction, at every noise level.",
    ),
    Statement(
        "cnns_depend_on_direction",
        "1 and 2, figure 1",
        "LeNet, VGG11, ResNet-18 and DenseNet-121 generalise well on some Fourier directions and at chance on others.",
    ),
    Statement(
        "figure_1_maps",
        "2, figure 1",
        "The accuracy of each network on each Fourier direction is the one that figure 1 shows.",
    ),
    Statement(
        "training_data_fitted",
        "figure 1",
        "Every network except LeNet fits almost all training samples, also where it does not generalise.",
    ),
    Statement(
        "densenet_few_directions",
        "1, figure 1",
        "DenseNet-121 generalises on only a few of the Fourier directions.",
        untested="The paper does not say how few, and one direction takes DenseNet-121 half a minute on a large GPU.",
    ),
    Statement(
        "maps_differ_by_network",
        "2, figures 1 and 2",
        "The maps of accuracy and of training time have different patterns for different networks.",
    ),
    Statement(
        "training_time_depends_on_direction",
        "2, figure 2",
        "Even with little noise, some Fourier directions take much longer to train than others.",
    ),
    Statement(
        "pooling_removed_equalises",
        "2, figure 3",
        "Without pooling, the accuracy of the CNNs is nearly equal over the Fourier directions.",
    ),
    Statement(
        "pooling_removed_improves",
        "2, figure 3",
        "Without pooling, the test accuracy of the CNNs improves.",
    ),
    Statement(
        "theorem_1",
        "2.1, theorem 1, figure 4a",
        "Equation 2 gives the best accuracy that any classifier can reach behind a pooling layer.",
        ruled_out="For the real data D(v) at stride 4, a Monte Carlo contradicts the printed formula (figure 4). In the circular "
        "complex model of the proof, the formula holds at stride 4 and at no other stride.",
    ),
    Statement(
        "pooling_loses_information",
        "2.1, figure 4a",
        "The best accuracy behind a pooling layer depends on the frequency of the discriminative direction.",
    ),
    Statement(
        "lemma_1",
        "2.2, lemma 1; B.2",
        "Lemma 1 gives the average Hessian of the linear model of pooling, for the filter and for the readout.",
        ruled_out="A Monte Carlo of the printed model (Equations).",
    ),
    Statement(
        "linear_model_optimum",
        "2.2",
        "The best accuracy of the linear model of pooling with isotropic noise does not depend on the frequency.",
    ),
    Statement(
        "curvature_sets_speed",
        "2.2, figure 4b",
        "The linear model of pooling trains more slowly on frequencies where the prefilter is weak.",
    ),
    Statement(
        "lemma_2",
        "3, lemma 2",
        "Equation 3 bounds the expected weight gradient of the dipole metric.",
        ruled_out="A Monte Carlo of the printed model (Equations).",
    ),
    Statement(
        "linear_model_gradient_covariance",
        "3, equation 4",
        "Equation 4 gives the gradient covariance of the linear model of pooling.",
        ruled_out="A Monte Carlo of the printed model (Equations).",
    ),
    Statement(
        "linear_model_mixed_derivative",
        "3, equation 5",
        "Equation 5 gives the mixed-derivative Gram matrix of the linear model of pooling, with the same eigenvectors.",
        ruled_out="A Monte Carlo of the printed model (Equations).",
    ),
    Statement(
        "solution_volume_bound",
        "3, equation 6",
        "Equation 6 bounds the share of random weights whose dipole metric exceeds a value.",
    ),
    Statement(
        "estimators_agree",
        "3, 3.1, D and D.2",
        "The first directions of the gradient covariance and of the mixed second derivative are closely aligned for most networks.",
    ),
    Statement(
        "mixed_is_noisier",
        "3.1, D and D.2, figures S17 to S19",
        "Directions from the mixed second derivative are much noisier than those from the gradient covariance.",
        undecided="The paper blames small second derivatives and its power iteration for the noise. We solve the Gram matrix exactly "
        "and compare few draws (256 for LeNet, 12 for ResNet-18), so that our runs do not test the published algorithm.",
    ),
    Statement(
        "mixed_derivative_small",
        "D",
        "At initialisation the mixed second derivative is orders of magnitude smaller than the input gradient.",
        untested="The two quantities have different units.",
    ),
    Statement(
        "directions_differ_by_network",
        "3.1, figure 5",
        "The neural anisotropy directions differ between architectures and identify them.",
    ),
    Statement(
        "directions_in_accurate_region",
        "3.1, figures 1 and 5",
        "The Fourier energy of a network's first directions lies where figure 1 shows a high accuracy for it.",
    ),
    Statement(
        "resnet_combs",
        "3.1, figures 5 and S15",
        "The directions of ResNet-18 are combs of spikes in the Fourier domain and not single frequencies.",
    ),
    Statement(
        "not_low_to_high",
        "3.1, figure 5; D.3.1",
        "The directions are not ordered from low to high frequency; DenseNet-121 shows this.",
        untested="It is read from pictures of DenseNet-121.",
    ),
    Statement(
        "accuracy_falls_with_index",
        "4.1, figure 6; D.3, figure S20",
        "The accuracy of LeNet, VGG11, ResNet-18 and DenseNet-121 falls monotonically with the index of the direction.",
    ),
    Statement(
        "lower_rank_earlier_drop",
        "4.1, figure 6",
        "The faster the eigenvalues of a network decay, the earlier its accuracy drops and the deeper it falls. "
        "ResNet-18 and DenseNet-121 have the strongest bias.",
    ),
    Statement(
        "accuracy_follows_eigenvalues",
        "thesis 3.3, figure 3.8",
        "The decay of the accuracy with the index has the shape of the decay of the eigenvalues.",
        untested="The paper does not say how alike the two curves are.",
    ),
    Statement(
        "poisoned_first_directions",
        "4.2, figure 7",
        "With a carrier along the first directions, ResNet-18's accuracy on clean CIFAR-10 images is very low.",
    ),
    Statement(
        "poisoned_last_directions",
        "4.2, figure 7",
        "With a carrier along the last directions, ResNet-18 generalises almost as well as without a carrier.",
    ),
    Statement(
        "poison_separates_classes",
        "4.2 and E",
        "The carriers alone make the classes of the poisoned training set linearly separable.",
        ruled_out="A linear programme per class finds no separating plane at indices 0, 100 and 1000 (figure E).",
    ),
    Statement(
        "flip_lowers_accuracy",
        "4.2, figure 8",
        "Every CNN is significantly less accurate on CIFAR-10 flipped in its own directions than on the original images.",
    ),
    Statement(
        "flip_fits_training_data",
        "4.2",
        "The networks reach about 0 % training error on the original and on the flipped images.",
    ),
    Statement(
        "imaginary_half_alike",
        "A.2.1, figure S10",
        "The accuracies on the imaginary half of the Fourier basis look like those on the real half, with four gaps.",
    ),
    Statement(
        "lenet_fails_without_noise",
        "A.2.2, figure S11",
        "LeNet fails on a few Fourier directions even without noise.",
    ),
    Statement(
        "noise_lowers_accuracy",
        "A.2.2, figure S11",
        "VGG11, ResNet-18 and DenseNet-121 generalise on every direction without noise, and every CNN is worse with more noise.",
    ),
    Statement(
        "resnet_most_robust",
        "A.2.2, figure S11b",
        "With noise of 1, ResNet-18 is slightly more accurate than the other CNNs.",
    ),
    Statement(
        "random_directions_uninformative",
        "A.3, figure S12; thesis figure 3.6",
        "On random orthonormal directions LeNet and ResNet-18 have nearly the same accuracy, close to chance.",
    ),
    Statement(
        "shallow_networks_isotropic",
        "C.2, examples 2 and 3",
        "The gradient covariance of logistic regression and of one hidden ReLU layer is a multiple of the identity.",
    ),
    Statement(
        "nonlinear_pooling_covariance",
        "C.2, example 4",
        "Example 4 gives the gradient covariance of the non-linear model of pooling.",
        ruled_out="A Monte Carlo of the printed model (Equations).",
    ),
    Statement(
        "differences_needed",
        "D.1",
        "Finite differences with a step of 100, instead of exact gradients, are needed to find meaningful directions.",
    ),
    Statement(
        "mlp_everywhere",
        "D.3, figure S20",
        "An MLP with three layers of 500 units generalises perfectly along each of its directions.",
        undecided="Its lowest accuracy is 93.6 %, and our bound for *perfectly* is 97 %. Along random directions it reaches 97 % "
        "without clipping, so that the recipe may explain the difference.",
    ),
    Statement(
        "mlp_slow_decay",
        "D.3, figure S20",
        "The eigenvalues of the MLP decay much more slowly than those of the CNNs.",
    ),
    Statement(
        "mlp_flat_in_the_limit",
        "D.3",
        "With infinitely many draws the eigenvalues of the MLP are equal; their decay is an effect of few draws.",
    ),
    Statement(
        "late_directions_train_slowly",
        "D.3.1, figure S21",
        "LeNet and ResNet-18 need many more iterations on late directions than on early ones.",
    ),
    Statement(
        "all_generalise_at_low_noise",
        "D.3.1, figure S21",
        "In figure S21 both networks reach almost 100 % test accuracy on every direction.",
    ),
    Statement(
        "late_directions_need_samples",
        "D.3.2, figure S22",
        "LeNet and ResNet-18 need more training samples to generalise on late directions than on early ones.",
    ),
    Statement(
        "resnet_generalises_with_samples",
        "D.3.2, figure S22",
        "With enough training samples ResNet-18 generalises perfectly on every direction.",
    ),
    Statement(
        "channels_share_directions",
        "E",
        "The directions for images with several channels are those for one channel, in each channel on its own.",
    ),
    Statement(
        "mlp_uses_linear_channel",
        "thesis 3.4.3, figure 3.13",
        "An MLP uses the linearly separable channel and not the images, whatever the direction.",
    ),
    Statement(
        "cnns_choose_by_direction",
        "thesis 3.4.3, figure 3.13",
        "LeNet and ResNet-18 use the linearly separable channel along early directions and the images along late ones.",
    ),
    Statement(
        "cnns_never_both",
        "thesis 3.4.3, figure 3.13",
        "LeNet and ResNet-18 use either the linearly separable channel or the images, never both.",
        untested="The paper does not say how little use of the other source counts as none.",
    ),
)

DROPPED = (
    Dropped(
        "1",
        "LeNet is near 100 % on some frequencies.",
        "not reproduced",
        "The paper does not say so: the authors' own LeNet accuracies have a maximum of 81.6 %.",
    ),
    Dropped(
        "7",
        "With the carrier on the first directions test accuracy is very low; on the last directions it is almost that of clean images.",
        "2 reproduced",
        "The claims did not name their network: LeNet on 4,000 images stood for ResNet-18. Each network has its own claims now.",
    ),
    Dropped(
        "S17-S19",
        "The first directions of the mixed derivative align with those of the gradient covariance (LeNet, VGG11, ResNet-18).",
        "1 reproduced, 2 not run",
        "The Gram matrix was averaged, while the paper averages the operator. The claims are now about the published average.",
    ),
    Dropped(
        "S17-S19",
        "They are noisier: agreement of two halves of the draws, mixed derivative minus gradient covariance.",
        "not reproduced",
        "The Gram matrix was averaged, while the paper averages the operator, which is the noisy one.",
    ),
)
