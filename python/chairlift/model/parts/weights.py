"""The weights of a model in memory, as the kernels take them."""

from torch import Tensor

from chairlift.kernels import ExpertLayers, LinearLayer
from chairlift.model.parts.norms import Norm
from chairlift.model.tensors.parts import (
    ExpertNorms,
    ExpertParts,
    LayerParts,
    ModelParts,
    RecurrentParts,
)

Weights = ModelParts[Norm, LinearLayer, ExpertLayers, Tensor]
LayerWeights = LayerParts[Norm, LinearLayer, ExpertLayers, Tensor]
ExpertWeights = ExpertParts[Norm, LinearLayer, ExpertLayers]
ExpertNormWeights = ExpertNorms[Norm]
RecurrentWeights = RecurrentParts[LinearLayer, Tensor]
