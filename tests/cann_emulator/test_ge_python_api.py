"""CANN's public Python API: builders, operators as functions, graphs and nodes, sessions."""

import inspect

import numpy as np
import pytest
from ge import es
from ge.error import GeError
from ge.es import GraphBuilder, attr_scope, control_dependency_scope
from ge.graph import DataType, DumpFormat, Format, Graph, Shape, Tensor, TensorDesc
from ge.session import Session
from ge.utils import GeUtils

ORIGIN = {"ge.exec.precision_mode_v2": "origin"}


def _run(graph: Graph, *inputs: Tensor) -> list:
    session = Session(ORIGIN)
    session.add_graph(1, graph)
    return [tensor.data for tensor in session.run_graph(1, list(inputs))]


def _two_inputs(shape=(2,)) -> tuple:
    builder = GraphBuilder("pair")
    a = builder.create_input(0, shape=list(shape))
    return builder, a, builder.create_input(1, name="second", shape=list(shape))


def test_a_session_runs_what_a_builder_built():
    builder, a, b = _two_inputs()
    builder.set_graph_output(es.math.Add(a, b) * 2.0 - a, 0)
    builder.set_graph_output(es.math.Maximum(a, b), 1)
    graph = builder.build_and_reset()
    x, y = (Tensor(values, data_type=DataType.DT_FLOAT, shape=[2]) for values in ([1.0, 5.0], [3.0, 2.0]))
    assert _run(graph, x, y) == [[7.0, 9.0], [3.0, 5.0]]


def test_a_builder_is_used_up_when_it_has_built():
    builder, a, b = _two_inputs()
    builder.build_and_reset([a + b])
    with pytest.raises(RuntimeError, match="already been built"):
        builder.create_scalar_int32(1)


def test_functions_have_the_prototypes_inputs_and_attributes():
    select = inspect.signature(es.math.SelectV2).parameters
    assert list(select) == ["condition", "then", "in_else"]
    assert str(inspect.signature(es.math.ReduceSum)) == "(x, axes, *, keep_dims=False, noop_with_empty_axes=True)"
    assert list(inspect.signature(es.math.Split).parameters) == ["split_dim", "x", "y_num", "num_split"]
    assert "math" in es.list_plugins() and es.get_plugin("math") is es.math and es.get_plugin("no") is None
    with pytest.raises(AttributeError, match="no operator Plus"):
        es.math.Plus  # noqa: B018


def test_lists_and_several_outputs():
    builder = GraphBuilder()
    x = builder.create_input(0, shape=[4])
    parts = es.math.Split(builder.create_scalar_int32(0), x, 2, num_split=2)
    sort = es.math.Sort(es.math.ConcatD(parts[::-1], concat_dim=0, N=2))
    assert sort._fields == ("y1", "y2")
    graph = builder.build_and_reset([sort.y1, sort.y2])
    assert _run(graph, Tensor([3.0, 1.0, 2.0, 0.0], shape=[4])) == [[0.0, 1.0, 2.0, 3.0], [1, 3, 0, 2]]


def test_numpy_integers_and_wrong_counts_are_refused():
    builder = GraphBuilder()
    with pytest.raises(TypeError, match="Shape must be a list of integers"):
        builder.create_input(0, shape=[np.int64(2)])
    with pytest.raises(ValueError, match="3 values do not fill shape"):
        builder.create_const_int64([1, 2, 3], [2])
    with pytest.raises(TypeError, match="Value must be an integer"):
        builder.create_scalar_int64(1.5)
    with pytest.raises(RuntimeError, match="DT_DOUBLE is not supported"):
        Tensor([1.0], data_type=DataType.DT_DOUBLE, shape=[1])


def test_scopes_give_attributes_and_dependencies_to_nodes():
    _, a, b = _two_inputs()
    with attr_scope({"_label": "hot"}), control_dependency_scope([b]):
        total = a + b
    node = total._node
    assert node.get_attr("_label") == "hot" and [n.name for n in node.get_in_control_nodes()] == ["second"]
    assert not (a - b)._node.has_attr("_label")


def test_graphs_survive_a_file(tmp_path):
    builder, a, b = _two_inputs()
    graph = builder.build_and_reset([es.math.Cast(a + b, dst_type=int(DataType.DT_INT32))])
    path = str(tmp_path / "graph.air")
    graph.save_to_air(path)
    again = Graph()
    again.load_from_air(path)
    assert [node.type for node in again.get_all_nodes()] == ["Data", "Data", "Add", "Cast", "NetOutput"]
    x = Tensor([1.5, 2.5], shape=[2])
    assert _run(again, x, x) == [[3, 5]]
    assert 'graph("pair")' in again.dump_to_stream(DumpFormat.kReadable)
    assert 'type: "Cast"' in again.dump_to_stream(DumpFormat.kTxt)


def test_edges_and_nodes_can_be_changed():
    builder, a, b = _two_inputs()
    graph = builder.build_and_reset([a - b])
    sub = graph.find_node_by_name("Sub_0")
    assert sub.get_in_data_nodes_and_port_indexes(1)[0].name == "second"
    graph.remove_edge(b._node, 0, sub, 1)
    graph.add_data_edge(a._node, 0, sub, 1)
    x = Tensor([1.0, 2.0], shape=[2])
    assert _run(graph, x, x) == [[0.0, 0.0]]
    with pytest.raises(RuntimeError, match="Failed to remove Node"):
        graph.remove_node(a._node)
    graph.remove_node(graph._add("lonely", "Data"))


def test_shapes_are_inferred_without_compiling():
    builder, a, b = _two_inputs((3, 1))
    graph = builder.build_and_reset([es.math.Mul(a, b)])
    GeUtils.infer_shape(graph, [[3, 1], [1, 4]])
    desc = graph.find_node_by_name("Mul_0").get_output_desc(0)
    assert (list(desc.shape), desc.data_type) == ([3, 4], DataType.DT_FLOAT)
    with pytest.raises(RuntimeError, match="cannot be broadcast"):
        GeUtils.infer_shape(graph, [[3], [4]])


def test_support_is_asked_node_by_node():
    builder = GraphBuilder()
    x = builder.create_input(0, shape=[2], data_type=DataType.DT_UINT64)
    good, bad = es.math.BitwiseXor(x, x), es.math.Neg(x)
    graph = builder.build_and_reset([good, bad])
    assert GeUtils.check_node_support_on_aicore(graph.find_node_by_name("BitwiseXor_0")) == (True, "")
    supported, reason = GeUtils.check_node_support_on_aicore(graph.find_node_by_name("Neg_0"))
    assert not supported and "u64" in reason


def test_descriptions_keep_what_they_are_told():
    desc = TensorDesc([2, -1], Format.FORMAT_NCHW, DataType.DT_BF16)
    assert desc.shape.is_unknown_shape() and desc.shape.get_shape_size() == -1 and desc.format == Format.FORMAT_NCHW
    assert Shape([2, 3]).get_shape_size() == 6
    assert desc.set_shape([4]).get_shape() == [4] and desc.get_origin_shape() == [2, -1]


def test_a_session_says_what_is_wrong():
    builder, a, b = _two_inputs()
    graph = builder.build_and_reset([a + b])
    session = Session()
    session.add_graph(7, graph)
    with pytest.raises(GeError, match="RunGraph failed; graph_id=7; E10001"):
        session.run_graph(7, [])
    with pytest.raises(GeError, match=r"AddGraph failed.*added before"):
        session.add_graph(7, graph)
    with pytest.raises(GeError, match="RunGraph failed; graph_id=8"):
        session.run_graph(8, [])
