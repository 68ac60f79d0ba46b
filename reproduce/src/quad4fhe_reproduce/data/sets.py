"""The data sets of the paper's experiments: file, hash, size, licence, and where the public copy is.

Decides what each file must be. Reading and checking is left to `prepared`, getting one from its public source to
`fetch`, splits and training to `prepare` and `train`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quad4fhe.errors import InputError

Kind = Literal["scikit-learn", "OpenML", "Hugging Face", "torchvision", "by hand"]


@dataclass(frozen=True)
class Source:
    """Where a data set can be had: how, its id there, and a page for a person to read."""

    kind: Kind
    id: str
    page: str


@dataclass(frozen=True)
class DataSet:
    """One file of the data folder.

    `sha256` is that of the file the published results of this project were made with. `labelled` says in a few words
    where the data is not the paper's own (a subset, another backbone), and is empty where it is.
    """

    name: str
    title: str
    file: str
    sha256: str
    rows: int
    columns: int
    classes: int
    licence: str
    source: Source
    labelled: str = ""

    @property
    def text(self) -> bool:
        """Whether the rows are texts."""
        return self.file.endswith(".csv.gz")


def _uci(id: int, slug: str) -> str:
    return f"https://archive.ics.uci.edu/dataset/{id}/{slug}"


def _hub(id: str) -> Source:
    return Source("Hugging Face", id, f"https://huggingface.co/datasets/{id}")


_RESEARCH = "research use; no open licence stated"
_LITE0 = "EfficientNet-Lite0 features"
_MINILM = "all-MiniLM-L6-v2 features"
_USEM = "Universal Sentence Encoder Multilingual features"

SETS: tuple[DataSet, ...] = (
    DataSet(
        name="breast_cancer",
        title="BWC",
        file="breast_cancer.npz",
        sha256="766ff4dd80b23f7ca7a391e14d5009fc5acc394c2db36d050c6e45ac61c35ee0",
        rows=569,
        columns=30,
        classes=2,
        licence="CC BY 4.0",
        source=Source("scikit-learn", "breast_cancer", _uci(17, "breast+cancer+wisconsin+diagnostic")),
    ),
    DataSet(
        name="diabetes",
        title="Diabetes",
        file="diabetes.npz",
        sha256="79c1e191691646d484c0b04d856b0b9ea17f3cdb823a3f685613b582cee3554d",
        rows=9538,
        columns=16,
        classes=2,
        licence="not stated",
        source=Source(
            "by hand", "a table of 9,538 patients", "https://www.kaggle.com/datasets/asinow/diabetes-dataset"
        ),
    ),
    DataSet(
        name="otto",
        title="Otto",
        file="otto.npz",
        sha256="0ca601675ef059ea63a6b0ea4bab3e6d250e27ccce2940c5e111466f278154b1",
        rows=61878,
        columns=93,
        classes=9,
        licence=_RESEARCH,
        source=Source(
            "by hand", "train.csv", "https://www.kaggle.com/c/otto-group-product-classification-challenge/data"
        ),
    ),
    DataSet(
        name="shuttle",
        title="Shuttle",
        file="shuttle.npz",
        sha256="3d0e8811a8b5300e330a934958343a01ea0908010f7f9554ef4acc3d97441528",
        rows=58000,
        columns=9,
        classes=7,
        licence="CC BY 4.0",
        source=Source("OpenML", "40685", _uci(148, "statlog+shuttle")),
    ),
    DataSet(
        name="sst5",
        title="SST-5",
        file="sst5.csv.gz",
        sha256="e267bf32a7cccff2f355ed48303e5b3cb1f300f0724069596eb519bfd6dc0130",
        rows=11855,
        columns=1,
        classes=5,
        licence=_RESEARCH,
        source=_hub("SetFit/sst5"),
    ),
    DataSet(
        name="ag_news",
        title="AG News",
        file="ag_news.csv.gz",
        sha256="fc735e96b0bd08a24443b915c2a04384fedf0ccbc0d40e5890f96ad5a83e1637",
        rows=22146,
        columns=1,
        classes=4,
        licence="non-commercial research",
        source=_hub("fancyzhx/ag_news"),
        labelled="subset: 14,546 of 120,000 rows",
    ),
    DataSet(
        name="cifar10",
        title="CIFAR-10",
        file="cifar10_pca256.npz",
        sha256="ba1abe4bc31a0127b9a3be3102eaa0e35cc2d42d8ec387fa47c2fdcc13a2b0d7",
        rows=60000,
        columns=256,
        classes=10,
        licence=_RESEARCH,
        source=Source("torchvision", "CIFAR10", "https://www.cs.toronto.edu/~kriz/cifar.html"),
    ),
    DataSet(
        name="cifar100",
        title="CIFAR-100",
        file="cifar100_pca256.npz",
        sha256="07d6c3d2f7bf8411dd6dd5b90ea29154920a6d9915446468df6c0fed419a4c8a",
        rows=60000,
        columns=256,
        classes=100,
        licence=_RESEARCH,
        source=Source("torchvision", "CIFAR100", "https://www.cs.toronto.edu/~kriz/cifar.html"),
    ),
    DataSet(
        name="cifar100_lite0",
        title="CIFAR-100 (frozen)",
        file="cifar100_lite0.npz",
        sha256="44a8e0c4d9717085588895147fe7bc589e2a222f88d1781486308109d2d99e7f",
        rows=60000,
        columns=384,
        classes=100,
        licence=_RESEARCH,
        source=Source("by hand", f"{_LITE0} of the images", "https://www.cs.toronto.edu/~kriz/cifar.html"),
        labelled=f"{_LITE0}, not DINOv2",
    ),
    DataSet(
        name="stanford_cars_lite0",
        title="Stanford Cars",
        file="stanford_cars_lite0.npz",
        sha256="5a963e2ad8c32ff4282dd4de51196997241a10c136b8c2f7bfa3707dd4a0b9ea",
        rows=16170,
        columns=384,
        classes=196,
        licence="images: non-commercial research",
        source=Source("by hand", f"{_LITE0} of the images", "https://huggingface.co/datasets/tanganke/stanford_cars"),
        labelled=f"{_LITE0}, not DINOv2; 16,170 of 16,185 images",
    ),
    DataSet(
        name="tiny_imagenet_lite0",
        title="Tiny-ImageNet",
        file="tiny_imagenet_lite0.npz",
        sha256="b76ffa93f052c6e79ca952fb59e153d976e3e24a8dda289114e02bed34e93629",
        rows=40000,
        columns=384,
        classes=200,
        licence="ImageNet terms: non-commercial research",
        source=Source("by hand", f"{_LITE0} of the images", "https://huggingface.co/datasets/zh-plus/tiny-imagenet"),
        labelled=f"{_LITE0}, not DINOv2; subset: 40,000 of 110,000 images",
    ),
    DataSet(
        name="cub200_lite0",
        title="CUB-200",
        file="cub200_lite0.npz",
        sha256="86fece1217d7f786d6351d6efaefd20681f1ad361fb937085e635241f5aacd2a",
        rows=11788,
        columns=384,
        classes=200,
        licence="images: non-commercial research",
        source=Source("by hand", f"{_LITE0} of the images", "https://www.vision.caltech.edu/datasets/cub_200_2011/"),
        labelled=f"CUB-200 birds in the place of FGVC-Aircraft; {_LITE0}, not DINOv2",
    ),
    DataSet(
        name="banking77_minilm",
        title="Banking77",
        file="banking77_minilm.npz",
        sha256="8b03c0d70a8089600d5286579e7cc2d75dbcbb6faefa6b8b77797de32c0456fe",
        rows=13083,
        columns=384,
        classes=77,
        licence="CC BY 4.0",
        source=Source("by hand", f"{_MINILM} of the texts", "https://huggingface.co/datasets/PolyAI/banking77"),
        labelled=f"{_MINILM}, not Qwen3",
    ),
    DataSet(
        name="massive_en_minilm",
        title="MASSIVE-en",
        file="massive_en_minilm.npz",
        sha256="5e0d9973e054fa5d4cd55ec36bea493113d4f8fec2c963718b93244a97029519",
        rows=16521,
        columns=384,
        classes=60,
        licence="CC BY 4.0",
        source=Source("by hand", f"{_MINILM} of the texts", "https://huggingface.co/datasets/AmazonScience/massive"),
        labelled=f"{_MINILM}, not Qwen3; subset: one language of six",
    ),
    DataSet(
        name="sib200_usem",
        title="SIB-200",
        file="sib200_usem.npz",
        sha256="80c0282be700bfab02ee55645e1e5c8a0583d74729f78171eae841fd06e98310",
        rows=6024,
        columns=512,
        classes=7,
        licence="Apache-2.0; FLORES-200 text CC BY-SA 4.0",
        source=Source("by hand", f"{_USEM} of the texts", "https://huggingface.co/datasets/Davlan/sib200"),
        labelled=f"{_USEM}, not Qwen3",
    ),
    DataSet(
        name="banking77",
        title="Banking77 (texts)",
        file="banking77.csv.gz",
        sha256="48fcd49c44237f4bf23ceb6fe7ccc7a0b8fdceb80a152be1d62c7d09f1933f1c",
        rows=13083,
        columns=1,
        classes=77,
        licence="CC BY 4.0",
        source=_hub("PolyAI/banking77"),
    ),
    DataSet(
        name="massive_en",
        title="MASSIVE-en (texts)",
        file="massive_en.csv.gz",
        sha256="c775a83a11f9882849e4efd4d80c1070998c9865d2595034bfa791cdbb66e0e3",
        rows=16521,
        columns=1,
        classes=60,
        licence="CC BY 4.0",
        source=Source("by hand", "the intents of en-US", "https://huggingface.co/datasets/AmazonScience/massive"),
        labelled="subset: one language of six",
    ),
    DataSet(
        name="sib200",
        title="SIB-200 (texts)",
        file="sib200.csv.gz",
        sha256="ead4007afab09af7fabb131d2a376bf84cbd3a7e6a92b254fb8632530431b07a",
        rows=6024,
        columns=1,
        classes=7,
        licence="Apache-2.0; FLORES-200 text CC BY-SA 4.0",
        source=Source("by hand", "six of its languages", "https://huggingface.co/datasets/Davlan/sib200"),
    ),
    DataSet(
        name="digits",
        title="Digits",
        file="digits.npz",
        sha256="2d28346bf72c385e9cdfc05022472dc2715ae52f1ee355de75177fd85565fb2f",
        rows=1797,
        columns=64,
        classes=10,
        licence="CC BY 4.0",
        source=Source("scikit-learn", "digits", _uci(80, "optical+recognition+of+handwritten+digits")),
        labelled="not in the paper",
    ),
    DataSet(
        name="pendigits",
        title="Pen digits",
        file="pendigits.npz",
        sha256="2980ff3ff198d40c71613ec228573fb670c3be8e21d5d87ce03684dbf493cc34",
        rows=10992,
        columns=16,
        classes=10,
        licence="CC BY 4.0",
        source=Source("OpenML", "32", _uci(81, "pen+based+recognition+of+handwritten+digits")),
        labelled="not in the paper",
    ),
    DataSet(
        name="magic_gamma",
        title="MAGIC gamma",
        file="magic_gamma.npz",
        sha256="006004128186aab82245bb6c83e49c6098aea7af57dbc4de18420893eb4d5a33",
        rows=19020,
        columns=10,
        classes=2,
        licence="CC BY 4.0",
        source=Source("OpenML", "1120", _uci(159, "magic+gamma+telescope")),
        labelled="not in the paper",
    ),
    DataSet(
        name="spambase",
        title="Spambase",
        file="spambase.npz",
        sha256="bb79c61a2ffbdd901a90237d6bc82e48012a8a9285694be577ff00063f1428e5",
        rows=4597,
        columns=57,
        classes=2,
        licence="CC BY 4.0",
        source=Source("OpenML", "44", _uci(94, "spambase")),
        labelled="not in the paper",
    ),
    DataSet(
        name="texture",
        title="Texture",
        file="texture.npz",
        sha256="38f5658ea7ecaf3c6ae10036c37a407f53b31aa3d223fbb5620f2343f3add1be",
        rows=5500,
        columns=40,
        classes=11,
        licence="not stated",
        source=Source("OpenML", "40499", "https://www.openml.org/d/40499"),
        labelled="not in the paper",
    ),
)
_BY_NAME = {each.name: each for each in SETS}


def data_set(name: str) -> DataSet:
    """The data set of that name."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise InputError(f"no data set is called {name!r}; wanted one of {', '.join(_BY_NAME)}") from None
