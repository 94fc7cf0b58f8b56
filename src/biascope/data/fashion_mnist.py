"""Fashion-MNIST: 70,000 pictures of clothes of 28×28 pixels, in the format of MNIST.

Reference: H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking machine learning
algorithms, 2017.
"""

from __future__ import annotations

from biascope.data.idx import idx_layouts
from biascope.data.official import OfficialSet
from biascope.data.sources import DebianPackage, SiteFiles

MD5 = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}

SET = OfficialSet(
    name="fashion-mnist",
    content="70,000 pictures of clothes, 1×28×28, 10 classes",
    site="https://github.com/zalandoresearch/fashion-mnist",
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    layouts=idx_layouts("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", md5=MD5, num_classes=10),
    sources=(
        SiteFiles("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
        SiteFiles("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"),
        DebianPackage("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
    ),
)
